// CodeMirror in a shadow root: it then uses adopted style sheets, which the content security policy allows.
import {
  autocompletion,
  closeBrackets,
  closeBracketsKeymap,
  completionKeymap,
  type CompletionContext,
  type CompletionResult,
} from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import { json } from "@codemirror/lang-json";
import { yaml } from "@codemirror/lang-yaml";
import {
  bracketMatching,
  defaultHighlightStyle,
  foldGutter,
  foldKeymap,
  HighlightStyle,
  indentOnInput,
  syntaxHighlighting,
} from "@codemirror/language";
import { forceLinting, linter, lintGutter, lintKeymap, type Diagnostic } from "@codemirror/lint";
import { highlightSelectionMatches, search, searchKeymap } from "@codemirror/search";
import { Compartment, EditorState, type Extension } from "@codemirror/state";
import {
  drawSelection,
  EditorView,
  highlightActiveLine,
  highlightActiveLineGutter,
  hoverTooltip,
  keymap,
  lineNumbers,
} from "@codemirror/view";
import { tags } from "@lezer/highlight";
import { useEffect, useRef } from "react";
import applicationSchema from "../../../../docs/reference/application.schema.json";
import { useT } from "../../locales";
import { completionsAt } from "./completion";
import type { EditorHandle, EditorProps, Finding } from "./editor";
import { descriptionOf, schemasAt, type JsonSchema } from "./schema";
import { placeAt } from "./yaml-path";
import "./editor.css";

const schema = applicationSchema as unknown as JsonSchema;

export default function View({
  value,
  onChange,
  label,
  language,
  completes,
  check,
  onFindings,
  readOnly = false,
  line,
  size = "normal",
  handle,
}: EditorProps & { handle?: { current: EditorHandle | null } }) {
  const t = useT();
  const host = useRef<HTMLDivElement>(null);
  const view = useRef<EditorView | null>(null);
  const editable = useRef(new Compartment());
  const latest = useRef({ onChange, check, onFindings });
  latest.current = { onChange, check, onFindings };
  const phrases = {
    Find: t("parts.editor.find"),
    Replace: t("parts.editor.replace"),
    next: t("parts.editor.next"),
    previous: t("parts.editor.previous"),
    all: t("parts.editor.all"),
    "match case": t("parts.editor.matchCase"),
    "by word": t("parts.editor.byWord"),
    regexp: t("parts.editor.regexp"),
    replace: t("parts.editor.replaceOne"),
    "replace all": t("parts.editor.replaceAll"),
    close: t("parts.editor.close"),
    Diagnostics: t("parts.editor.problems"),
    "No diagnostics": t("parts.editor.noProblems"),
    "Fold line": t("parts.editor.fold"),
    "Unfold line": t("parts.editor.unfold"),
  };
  const phrasesNow = useRef(phrases);
  phrasesNow.current = phrases;

  useEffect(() => {
    const element = host.current;
    if (element === null) return;
    const root = element.shadowRoot ?? element.attachShadow({ mode: "open" });
    let pending: AbortController | null = null;
    const checks: Extension[] =
      check === undefined
        ? []
        : [
            lintGutter(),
            linter(
              async (shown) => {
                pending?.abort();
                pending = new AbortController();
                const text = shown.state.doc.toString();
                const findings = (await latest.current.check?.(text, pending.signal).catch(() => null)) ?? null;
                latest.current.onFindings?.(findings);
                return findings === null ? [] : findings.map((finding) => diagnosticOf(shown.state, finding));
              },
              { delay: 400 },
            ),
          ];
    const completion: Extension[] =
      completes === undefined
        ? []
        : [
            autocompletion({ override: [complete], icons: false, activateOnTyping: true }),
            hoverTooltip((shown, at) => describe(shown.state, at)),
          ];
    const created = new EditorView({
      root,
      parent: root,
      state: EditorState.create({
        doc: value,
        extensions: [
          EditorState.phrases.of(phrasesNow.current),
          lineNumbers(),
          highlightActiveLineGutter(),
          foldGutter(),
          history(),
          drawSelection(),
          indentOnInput(),
          bracketMatching(),
          closeBrackets(),
          highlightActiveLine(),
          highlightSelectionMatches(),
          search({ top: true }),
          EditorView.lineWrapping,
          EditorView.contentAttributes.of({
            "aria-label": label,
            tabindex: "0",
            spellcheck: "false",
            autocapitalize: "off",
          }),
          syntaxHighlighting(colours),
          syntaxHighlighting(defaultHighlightStyle, { fallback: true }),
          language === "yaml" ? yaml() : language === "json" ? json() : [],
          ...completion,
          ...checks,
          editable.current.of(readOnlyExtension(readOnly)),
          keymap.of([
            {
              key: "Mod-s",
              preventDefault: true,
              run: (shown) => {
                forceLinting(shown);
                return true;
              },
            },
            ...closeBracketsKeymap,
            ...defaultKeymap.filter((binding) => binding.key !== "Mod-Enter"),
            ...searchKeymap,
            ...historyKeymap,
            ...foldKeymap,
            ...completionKeymap,
            ...lintKeymap,
            indentWithTab,
          ]),
          EditorView.updateListener.of((update) => {
            if (!update.docChanged) return;
            latest.current.onFindings?.(null);
            latest.current.onChange?.(update.state.doc.toString());
          }),
          look,
        ],
      }),
    });
    view.current = created;
    const goTo = (to: number, column: number) => {
      const target = created.state.doc.line(Math.min(Math.max(1, to), created.state.doc.lines));
      const at = Math.min(target.to, target.from + Math.max(0, column - 1));
      created.dispatch({ selection: { anchor: at }, effects: EditorView.scrollIntoView(at, { y: "center" }) });
      created.focus();
    };
    if (handle !== undefined) handle.current = { goTo };
    if (line !== undefined) {
      const target = created.state.doc.line(Math.min(Math.max(1, line), created.state.doc.lines));
      created.dispatch({
        selection: { anchor: target.from },
        effects: EditorView.scrollIntoView(target.from, { y: "center" }),
      });
    }
    return () => {
      pending?.abort();
      if (handle !== undefined) handle.current = null;
      view.current = null;
      created.destroy();
    };
    // The editor keeps its own text; it is made anew for another language or kind of document only.
  }, [language, completes, check === undefined, label]);

  useEffect(() => {
    const shown = view.current;
    if (shown === null || shown.state.doc.toString() === value) return;
    shown.dispatch({ changes: { from: 0, to: shown.state.doc.length, insert: value } });
  }, [value]);

  useEffect(() => {
    view.current?.dispatch({ effects: editable.current.reconfigure(readOnlyExtension(readOnly)) });
  }, [readOnly]);

  return (
    <div className="editor" data-size={size}>
      <div ref={host} className="editor-host" />
      {!readOnly && <p className="editor-keys muted">{t("parts.editor.keys")}</p>}
    </div>
  );
}

const readOnlyExtension = (readOnly: boolean): Extension => [EditorState.readOnly.of(readOnly)];

function complete(context: CompletionContext): CompletionResult | null {
  const found = completionsAt(context.state.doc.toString(), context.pos, schema);
  if (found === null || found.options.length === 0) return null;
  const typed = context.pos - found.from;
  // An empty line offers nothing by itself: that would be in the way of every line break.
  if (
    !context.explicit &&
    typed === 0 &&
    !/[.:\s[{,]$/.test(context.state.sliceDoc(Math.max(0, context.pos - 1), context.pos))
  )
    return null;
  if (!context.explicit && typed === 0 && context.state.doc.lineAt(context.pos).text.trim() === "") return null;
  return { from: found.from, options: found.options, validFor: /^[\w-]*$/ };
}

/** Description of the key under the pointer, from the schema. */
function describe(state: EditorState, at: number) {
  const line = state.doc.lineAt(at);
  const key = /^(\s*(?:-\s+)*)("[^"]*"|[\w-]+)\s*:/.exec(line.text);
  if (key === null) return null;
  const from = line.from + (key[1]?.length ?? 0);
  const to = from + (key[2]?.length ?? 0);
  if (at < from || at > to) return null;
  const place = placeAt(state.doc.toString(), from);
  if (place === null || place.block) return null;
  const text = descriptionOf(schemasAt(schema, [...place.path, (key[2] ?? "").replaceAll('"', "")]));
  if (text === "") return null;
  return {
    pos: from,
    end: to,
    above: true,
    create: () => {
      const dom = document.createElement("div");
      dom.className = "cm-description";
      dom.textContent = text;
      return { dom };
    },
  };
}

/** The server names a line and a column; the range reaches to the end of the word, or of the line. */
function diagnosticOf(state: EditorState, finding: Finding): Diagnostic {
  const line = state.doc.line(Math.min(Math.max(1, finding.line ?? 1), state.doc.lines));
  const from = Math.min(line.to, line.from + Math.max(0, (finding.column ?? 1) - 1));
  const word = /^[\w.-]+/.exec(state.sliceDoc(from, line.to));
  const to = word === null ? line.to : from + word[0].length;
  const hint = finding.hint ?? null;
  return {
    from: Math.min(from, to),
    to: Math.max(from, to),
    severity: finding.severity,
    message: `${finding.path === "" ? "" : `${finding.path}: `}${finding.message}${hint === null ? "" : `\n${hint}`}`,
    source: finding.code,
  };
}

const colours = HighlightStyle.define([
  { tag: [tags.propertyName, tags.definition(tags.propertyName)], color: "var(--info)" },
  { tag: tags.string, color: "var(--success)" },
  { tag: [tags.number, tags.bool, tags.null], color: "var(--series-2)" },
  { tag: [tags.keyword, tags.typeName, tags.labelName], color: "var(--series-4)" },
  { tag: [tags.comment, tags.lineComment], color: "var(--text-muted)", fontStyle: "italic" },
  { tag: [tags.separator, tags.punctuation, tags.brace, tags.squareBracket], color: "var(--text-soft)" },
  { tag: tags.invalid, color: "var(--error)" },
]);

const look = EditorView.theme({
  "&": { color: "var(--text)", backgroundColor: "var(--surface)", fontSize: "var(--size-13)", height: "100%" },
  "&.cm-focused": { outline: "none" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.55", overflow: "auto" },
  ".cm-content": { caretColor: "var(--text)", padding: "8px 0" },
  ".cm-cursor": { borderLeftColor: "var(--text)", borderLeftWidth: "2px" },
  ".cm-gutters": {
    backgroundColor: "var(--canvas)",
    color: "var(--text-muted)",
    borderRight: "1px solid var(--line)",
  },
  ".cm-activeLineGutter": { backgroundColor: "var(--active)", color: "var(--text)" },
  ".cm-activeLine": { backgroundColor: "color-mix(in srgb, var(--hover) 60%, transparent)" },
  "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground": {
    backgroundColor: "var(--selected)",
  },
  ".cm-selectionMatch": { backgroundColor: "var(--pending-soft)" },
  ".cm-matchingBracket, &.cm-focused .cm-matchingBracket": {
    backgroundColor: "var(--active)",
    outline: "1px solid var(--line-strong)",
  },
  ".cm-searchMatch": { backgroundColor: "var(--pending-soft)", outline: "1px solid var(--pending)" },
  ".cm-searchMatch-selected": { backgroundColor: "var(--accent-soft)" },
  ".cm-foldPlaceholder": {
    backgroundColor: "var(--active)",
    border: "none",
    color: "var(--text-soft)",
    padding: "0 6px",
  },
  ".cm-tooltip": {
    backgroundColor: "var(--surface)",
    color: "var(--text)",
    border: "1px solid var(--line-strong)",
    borderRadius: "var(--radius)",
    boxShadow: "var(--shadow)",
    fontFamily: "var(--font)",
    fontSize: "var(--size-13)",
    maxWidth: "min(520px, 90vw)",
  },
  ".cm-tooltip.cm-tooltip-autocomplete > ul": {
    fontFamily: "var(--mono)",
    fontSize: "var(--size-12)",
    maxHeight: "16em",
  },
  ".cm-tooltip.cm-tooltip-autocomplete > ul > li": { padding: "3px 10px", lineHeight: "1.6" },
  ".cm-tooltip.cm-tooltip-autocomplete > ul > li[aria-selected]": {
    backgroundColor: "var(--ink)",
    color: "var(--on-ink)",
  },
  ".cm-completionDetail": { color: "inherit", opacity: "0.75", fontStyle: "normal", marginLeft: "12px" },
  ".cm-completionMatchedText": { textDecoration: "none", fontWeight: "700" },
  ".cm-completionInfo": { padding: "8px 10px", maxWidth: "320px" },
  ".cm-description": { padding: "8px 10px", maxWidth: "420px" },
  ".cm-diagnostic": { padding: "6px 10px", whiteSpace: "pre-wrap" },
  ".cm-diagnostic-error": { borderLeft: "4px solid var(--error)" },
  ".cm-diagnostic-warning": { borderLeft: "4px solid var(--pending)" },
  ".cm-diagnosticSource": { color: "var(--text-muted)", fontSize: "var(--size-12)" },
  ".cm-lintRange-error": {
    backgroundImage: "none",
    textDecoration: "underline wavy var(--error)",
    textUnderlineOffset: "3px",
  },
  ".cm-lintRange-warning": {
    backgroundImage: "none",
    textDecoration: "underline wavy var(--pending)",
    textUnderlineOffset: "3px",
  },
  ".cm-lint-marker": { width: "10px", height: "10px", margin: "5px 2px", borderRadius: "50%", content: '""' },
  ".cm-lint-marker-error": { backgroundColor: "var(--error)" },
  ".cm-lint-marker-warning": { backgroundColor: "var(--pending)", borderRadius: "2px" },
  ".cm-panels": { backgroundColor: "var(--canvas)", color: "var(--text)", borderColor: "var(--line)" },
  ".cm-panel.cm-search": { padding: "8px", fontFamily: "var(--font)" },
  ".cm-textfield": {
    backgroundColor: "var(--surface)",
    color: "var(--text)",
    border: "1px solid var(--control-line)",
    borderRadius: "var(--radius)",
    fontSize: "var(--size-13)",
  },
  ".cm-button": {
    backgroundImage: "none",
    backgroundColor: "var(--surface)",
    color: "var(--text)",
    border: "1px solid var(--control-line)",
    borderRadius: "var(--radius)",
    fontSize: "var(--size-13)",
  },
  ".cm-panel.cm-panel-lint ul [aria-selected]": { backgroundColor: "var(--selected)", color: "var(--text)" },
});
