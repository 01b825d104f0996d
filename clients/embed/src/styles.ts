// Styles of the components, as an adopted style sheet: a content security policy without inline styles permits it.

const CSS = `
:host {
  --tocsin-accent: #b3261e;
  --tocsin-background: Canvas;
  --tocsin-text: CanvasText;
  --tocsin-muted: color-mix(in srgb, var(--tocsin-text) 68%, var(--tocsin-background));
  --tocsin-line: color-mix(in srgb, var(--tocsin-text) 16%, var(--tocsin-background));
  --tocsin-hover: color-mix(in srgb, var(--tocsin-text) 6%, var(--tocsin-background));
  --tocsin-radius: 8px;
  --tocsin-width: 380px;
  color: var(--tocsin-text);
  font: 14px/1.45 system-ui, sans-serif;
  display: inline-block;
  text-align: start;
}
:host([hidden]) { display: none; }
:host(tocsin-inbox) { display: block; }
* { box-sizing: border-box; }
button {
  font: inherit; color: inherit; background: none; border: 1px solid transparent; border-radius: 6px;
  padding: 4px 8px; min-block-size: 28px; min-inline-size: 28px; cursor: pointer;
}
button:hover { background: var(--tocsin-hover); }
:is(button, a, li):focus-visible { outline: 2px solid var(--tocsin-accent); outline-offset: -2px; }
.bell { position: relative; padding: 6px; line-height: 0; }
.bell svg { inline-size: 24px; block-size: 24px; }
.badge {
  position: absolute; inset-block-start: -3px; inset-inline-end: -5px; min-inline-size: 18px; padding: 0 4px;
  border-radius: 9px; background: var(--tocsin-accent); color: #fff; font: 600 11px/18px system-ui, sans-serif;
}
dialog {
  position: fixed; margin: 0; padding: 0; border: 1px solid var(--tocsin-line); border-radius: var(--tocsin-radius);
  background: var(--tocsin-background); color: inherit; inline-size: min(var(--tocsin-width), calc(100vw - 16px));
  max-block-size: min(70vh, 560px); box-shadow: 0 8px 28px rgb(0 0 0 / 22%); overflow: hidden;
}
dialog[open] { display: flex; }
dialog::backdrop { background: transparent; }
.inbox { display: flex; flex-direction: column; inline-size: 100%; min-block-size: 0; background: var(--tocsin-background); }
:host(tocsin-inbox) .inbox { border: 1px solid var(--tocsin-line); border-radius: var(--tocsin-radius); max-block-size: inherit; }
.head { display: flex; align-items: center; gap: 8px; padding: 10px 12px 4px; }
h2 { flex: 1; margin: 0; font-size: 16px; font-weight: 600; }
.bar { display: flex; flex-wrap: wrap; align-items: center; gap: 2px; padding: 0 8px 6px; border-block-end: 1px solid var(--tocsin-line); }
.bar [role=tablist] { display: flex; flex: 1; gap: 2px; }
[role=tab] { color: var(--tocsin-muted); }
[role=tab][aria-selected=true] { color: inherit; font-weight: 600; box-shadow: inset 0 -2px var(--tocsin-accent); border-radius: 6px 6px 0 0; }
.state { margin: 0; padding: 8px 12px; background: var(--tocsin-hover); color: var(--tocsin-muted); }
.state:empty { display: none; }
.list { overflow-y: auto; min-block-size: 0; overscroll-behavior: contain; }
ul { margin: 0; padding: 0; list-style: none; }
li { position: relative; padding: 10px 12px 10px 24px; border-block-end: 1px solid var(--tocsin-line); overflow-wrap: anywhere; }
li:last-child { border: 0; }
li:hover { background: var(--tocsin-hover); }
.dot { position: absolute; inset-inline-start: 9px; inset-block-start: 16px; inline-size: 8px; block-size: 8px; border-radius: 50%; background: var(--tocsin-accent); }
.subject { font-weight: 600; color: inherit; text-decoration: none; }
a.subject:hover { text-decoration: underline; }
.read .subject { font-weight: 400; }
.text { margin: 2px 0 0; white-space: pre-line; display: -webkit-box; -webkit-box-orient: vertical; -webkit-line-clamp: 4; overflow: hidden; }
.foot { display: flex; flex-wrap: wrap; align-items: center; gap: 2px; margin: 4px 0 0 -8px; color: var(--tocsin-muted); font-size: 12px; }
.foot time { padding-inline: 8px; margin-inline-end: auto; }
.action { border: 1px solid var(--tocsin-line); border-radius: 6px; padding: 3px 8px; min-block-size: 26px; color: var(--tocsin-text); text-decoration: none; }
.action:hover { background: var(--tocsin-hover); }
.empty { margin: 0; padding: 32px 12px; text-align: center; color: var(--tocsin-muted); }
.more { inline-size: 100%; }
iframe { inline-size: 100%; block-size: 160px; border: 0; background: #fff; }
.hidden { position: absolute; inline-size: 1px; block-size: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
@media (prefers-reduced-motion: no-preference) { button, li { transition: background 120ms; } }
@media (forced-colors: active) { .badge, .dot { background: Highlight; color: HighlightText; forced-color-adjust: none; } }
`;

let sheet: CSSStyleSheet | undefined;

/** The style sheet, made once. */
export function styles(): CSSStyleSheet {
  if (sheet === undefined) {
    sheet = new CSSStyleSheet();
    sheet.replaceSync(CSS);
  }
  return sheet;
}
