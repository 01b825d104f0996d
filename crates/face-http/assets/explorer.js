// Shows /openapi.json, and sends requests. Nothing is stored: the key is forgotten with the page.
"use strict";

const METHODS = ["get", "post", "put", "patch", "delete"];
const DEPTH_MAX = 8;
const SHOWN_MAX = 200000;
const $ = (id) => document.getElementById(id);

// An element with properties and children; texts are never read as HTML.
function make(name, properties = {}, ...children) {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// Markdown as far as descriptions use it: paragraphs, lists, `code`, **strong**, *emphasis* and links.
function markdown(text) {
  const blocks = (text || "").trim().split(/\n\s*\n/).filter(Boolean);
  return blocks.map((block) => {
    const lines = block.split("\n");
    const isList = lines.every((line) => /^\s*([-*]|\d+[.)])\s/.test(line) || /^\s{2,}\S/.test(line));
    if (!isList) return make("p", {}, ...inline(lines.join(" ")));
    const items = [];
    for (const line of lines) {
      const item = line.match(/^\s*(?:[-*]|\d+[.)])\s+(.*)/);
      if (item) items.push(item[1]);
      else items[items.length - 1] += " " + line.trim();
    }
    return make(/^\s*\d/.test(lines[0]) ? "ol" : "ul", { className: "text" }, ...items.map((item) => make("li", {}, ...inline(item))));
  });
}

function inline(text) {
  const parts = [];
  const pattern = /`([^`]+)`|\*\*([^*]+)\*\*|\*([^*\s][^*]*)\*|\[([^\]]+)\]\(((?:https?:\/\/|\/)[^)\s]*)\)/g;
  let end = 0;
  for (const found of text.matchAll(pattern)) {
    const [all, code, strong, emphasis, label, target] = found;
    parts.push(text.slice(end, found.index));
    if (code) parts.push(make("code", { textContent: code }));
    else if (strong) parts.push(make("strong", { textContent: strong }));
    else if (emphasis) parts.push(make("em", { textContent: emphasis }));
    else parts.push(make("a", { textContent: label, href: target, rel: "noreferrer" }));
    end = found.index + all.length;
  }
  return [...parts, text.slice(end)];
}

let description;
const resolve = (value) => {
  for (let hops = 0; value && value.$ref && hops < DEPTH_MAX; hops++) {
    value = value.$ref.replace("#/", "").split("/").reduce((at, part) => at && at[part.replaceAll("~1", "/")], description);
  }
  return value || {};
};

// A schema as text, one member a line.
function describe(schema, depth = 0) {
  const named = schema && schema.$ref ? schema.$ref.split("/").pop() : "";
  schema = resolve(schema);
  const indent = "  ".repeat(depth + 1);
  if (depth > DEPTH_MAX) return named || "…";
  const union = schema.oneOf || schema.anyOf;
  if (union) return union.map((one) => describe(one, depth)).join(" or ");
  if (schema.allOf) return schema.allOf.map((one) => describe(one, depth)).join(" and ");
  const types = [].concat(schema.type || []);
  if (types.includes("array")) return "list of " + describe(schema.items || {}, depth);
  if (schema.properties) {
    const required = schema.required || [];
    const lines = Object.entries(schema.properties).map(([name, member]) => {
      const about = (member.description || resolve(member).description || "").split("\n")[0];
      return indent + name + (required.includes(name) ? "" : "?") + ": " + describe(member, depth + 1) + (about ? "   — " + about : "");
    });
    return "{\n" + lines.join("\n") + "\n" + "  ".repeat(depth) + "}";
  }
  if (schema.additionalProperties && typeof schema.additionalProperties === "object") {
    return "{ name: " + describe(schema.additionalProperties, depth + 1) + " }";
  }
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  return (types.join(" or ") || "anything") + (schema.format ? " (" + schema.format + ")" : "");
}

// A body to begin with: the required members.
function example(schema, depth = 0) {
  schema = resolve(schema);
  if (schema.example !== undefined) return schema.example;
  if (schema.enum) return schema.enum[0];
  const one = (schema.oneOf || schema.anyOf || schema.allOf || [])[0];
  if (one) return example(one, depth);
  const type = [].concat(schema.type || []).find((name) => name !== "null");
  if (schema.properties && depth < DEPTH_MAX) {
    const required = schema.required || [];
    return Object.fromEntries(required.map((name) => [name, example(schema.properties[name] || {}, depth + 1)]));
  }
  return { array: [], string: "", integer: 0, number: 0, boolean: false }[type] ?? {};
}

function field(parameter) {
  const input = make("input", { name: parameter.name, required: parameter.required === true, autocomplete: "off" });
  input.dataset.in = parameter.in;
  const about = (parameter.description || "") + (parameter.in === "path" ? "" : " (" + parameter.in + ")");
  return make("label", {}, parameter.name + (parameter.required ? " *" : ""), input, make("small", {}, ...inline(about.trim())));
}

// How a shell writes a text.
const quoted = (text) => "'" + text.replaceAll("'", "'\\''") + "'";

function form(path, method, operation) {
  const parameters = (operation.parameters || []).map(resolve);
  const body = resolve(operation.requestBody || {}).content;
  const fields = make("div", { className: "fields" }, ...parameters.map(field));
  const inside = make("form", {}, fields);
  let text, kind;
  if (body) {
    const kinds = Object.keys(body);
    kind = make("select", {}, ...kinds.map((name) => make("option", { textContent: name })));
    const first = body[kinds[0]].schema || {};
    text = make("textarea", { spellcheck: false, value: kinds[0].endsWith("json") ? JSON.stringify(example(first), null, 2) : "" });
    inside.append(make("h3", { textContent: "Body" }), make("label", {}, "media type", kind), make("label", {}, "content", text));
    inside.append(make("pre", { textContent: describe(first), tabIndex: 0 }));
  }
  const answer = make("pre", { hidden: true, tabIndex: 0 });
  answer.setAttribute("role", "status");
  const command = make("pre", { hidden: true, tabIndex: 0 });
  inside.append(make("p", {}, make("button", { textContent: "Send " + method.toUpperCase() })), command, answer);

  inside.addEventListener("submit", async (event) => {
    event.preventDefault();
    let target = path;
    const query = new URLSearchParams();
    const headers = {};
    for (const input of fields.querySelectorAll("input")) {
      if (input.dataset.in === "path") target = target.replace("{" + input.name + "}", encodeURIComponent(input.value));
      else if (input.value && input.dataset.in === "query") query.append(input.name, input.value);
      else if (input.value && input.dataset.in === "header") headers[input.name] = input.value;
    }
    if (query.size) target += "?" + query;
    if (kind) headers["Content-Type"] = kind.value;
    const shown = ["curl -X " + method.toUpperCase(), quoted(location.origin + target), "-H 'Authorization: Bearer '\"$KEY\""];
    shown.push(...Object.entries(headers).map(([name, value]) => "-H " + quoted(name + ": " + value)));
    if (text && text.value) shown.push("--data-binary " + quoted(text.value));
    command.textContent = shown.join(" ");
    if ($("key").value) headers.Authorization = "Bearer " + $("key").value.trim();
    answer.hidden = command.hidden = false;
    answer.textContent = "…";
    const started = performance.now();
    try {
      const sent = await fetch(target, { method: method.toUpperCase(), headers, body: text ? text.value : undefined, credentials: "omit" });
      const lines = [sent.status + " " + sent.statusText + ", " + Math.round(performance.now() - started) + " ms"];
      sent.headers.forEach((value, name) => lines.push(name + ": " + value));
      answer.textContent = lines.join("\n") + "\n\n" + (await read(sent));
    } catch (error) {
      answer.textContent = "The request failed: " + error.message;
    }
  });
  return inside;
}

// The begin of an answer; a stream goes on without end.
async function read(answer) {
  const reader = answer.body ? answer.body.getReader() : null;
  const decoder = new TextDecoder();
  let text = "";
  const limit = setTimeout(() => reader && reader.cancel(), 10000);
  while (reader && text.length < SHOWN_MAX) {
    const { done, value } = await reader.read();
    if (done) break;
    text += decoder.decode(value, { stream: true });
  }
  clearTimeout(limit);
  if (text.length >= SHOWN_MAX) {
    reader.cancel();
    return text.slice(0, SHOWN_MAX) + "\n… cut after " + SHOWN_MAX + " characters";
  }
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function operationDetails(path, method, operation) {
  const inside = make("div", { className: "inside" });
  const scopes = (operation.security || []).flatMap((way) => Object.entries(way).map(([name, list]) => (list.length ? list.join(", ") : name)));
  inside.append(...markdown(operation.description));
  inside.append(make("p", { textContent: scopes.length ? "Needs: " + scopes.join(" or ") : "Needs no key." }));
  inside.append(form(path, method, operation));
  const answers = Object.entries(operation.responses || {}).map(([status, response]) => {
    response = resolve(response);
    const content = Object.entries(response.content || {});
    const item = make("li", {}, make("strong", { textContent: status }), " ", ...inline(response.description || ""));
    const good = content.find(([kind, value]) => value.schema && !kind.startsWith("application/problem"));
    if (good) item.append(make("pre", { textContent: good[0] + " " + describe(good[1].schema), tabIndex: 0 }));
    return item;
  });
  inside.append(make("h3", { textContent: "Answers" }), make("ul", { className: "answers" }, ...answers));
  return inside;
}

function show() {
  const areas = new Map((description.tags || []).map((tag) => [tag.name, { about: tag.description, operations: [] }]));
  for (const [path, item] of Object.entries(description.paths)) {
    for (const method of METHODS.filter((name) => item[name])) {
      const operation = item[method];
      const tag = (operation.tags || ["others"])[0];
      if (!areas.has(tag)) areas.set(tag, { about: "", operations: [] });
      const name = operation.summary || "";
      const summary = make("summary", {}, make("span", { className: "method " + method.toUpperCase(), textContent: method.toUpperCase() }), make("span", { className: "path", textContent: path }), make("span", {}, ...inline(name)));
      const details = make("details", { className: "operation" }, summary);
      details.dataset.words = [method, path, name, tag].join(" ").toLowerCase();
      // Made when it is looked at: all of them at once take long.
      details.addEventListener("toggle", () => details.append(operationDetails(path, method, operation)), { once: true });
      areas.get(tag).operations.push(details);
    }
  }
  for (const [tag, { about, operations }] of areas) {
    if (!operations.length) continue;
    const count = make("span", { className: "count", textContent: String(operations.length) });
    const summary = make("summary", {}, make("h2", { textContent: tag }), count, make("span", { className: "about" }, ...inline(about || "")));
    $("operations").append(make("details", { className: "area" }, summary, ...operations));
  }
  filter();
}

function filter() {
  const words = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  let count = 0;
  const isFiltered = words.length > 0;
  for (const area of document.querySelectorAll(".area")) {
    let any = false;
    for (const operation of area.querySelectorAll(".operation")) {
      operation.hidden = !words.every((word) => operation.dataset.words.includes(word));
      if (!operation.hidden) { any = true; count += 1; }
    }
    area.hidden = !any;
    // A filter opens what it finds; without one an area is as its reader left it.
    if (isFiltered) {
      area.dataset.before ??= area.open ? "open" : "closed";
      area.open = any;
    } else if (area.dataset.before) {
      area.open = area.dataset.before === "open";
      delete area.dataset.before;
    }
  }
  $("state").textContent = count + " operations";
}

$("settings").addEventListener("submit", (event) => event.preventDefault());
$("filter").addEventListener("input", filter);
fetch("/openapi.json")
  .then((answer) => (answer.ok ? answer.json() : Promise.reject(new Error("status " + answer.status))))
  .then((read) => { description = read; show(); })
  .catch((error) => { $("state").textContent = "The description cannot be read: " + error.message; });
