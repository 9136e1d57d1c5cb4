// Where a specification is written: JSON that knows the schema of a job, and what the service says of it.
import { autocompletion, closeBrackets, closeBracketsKeymap, completionKeymap, type Completion, type CompletionContext, type CompletionResult } from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap } from "@codemirror/commands";
import { json } from "@codemirror/lang-json";
import { bracketMatching, indentOnInput, indentUnit, syntaxHighlighting } from "@codemirror/language";
import { lintGutter, lintKeymap, linter, type Diagnostic } from "@codemirror/lint";
import { EditorState, Prec, StateEffect } from "@codemirror/state";
import { EditorView, drawSelection, highlightActiveLine, hoverTooltip, keymap, lineNumbers } from "@codemirror/view";
import { classHighlighter } from "@lezer/highlight";
import { useEffect, useRef } from "react";

import { kindOf, pathOf, pointerOf, type Json, type Path, type Schema, type SpecSchema } from "./schema";
import { brokenAt, nameOf, pathTo, placeOf, rootOf, textOf, treeOf, valueOf } from "./tree";

export interface Mark {
  readonly pointer: string;
  readonly detail: string;
}

export interface EditorProps {
  readonly label: string;
  readonly text: string;
  readonly schema: SpecSchema;
  /** Names that may stand at members of these names. */
  readonly names: Record<string, readonly string[]>;
  readonly onChange: (text: string) => void;
  readonly onRun: () => void;
  /** What else is wrong with a specification that is JSON; undefined: the service could not be asked. */
  readonly check: (spec: Json) => Promise<Mark[] | undefined>;
  /** Undefined: nothing is known to be wrong, and the service has not said so. */
  readonly onMarks: (marks: Mark[] | undefined) => void;
  /** It is checked anew where this is another. */
  readonly checkedFor: unknown;
}

const SETTLED_MS = 400;
const checkAnew = StateEffect.define<null>();

export default function Editor(props: EditorProps) {
  const place = useRef<HTMLDivElement>(null);
  const view = useRef<EditorView>(undefined);
  const latest = useRef(props);
  latest.current = props;
  useEffect(() => {
    const made = new EditorView({ parent: place.current!, state: EditorState.create({ doc: latest.current.text, extensions: extensionsOf(latest) }) });
    view.current = made;
    return () => made.destroy();
  }, []);
  useEffect(() => {
    const now = view.current;
    if (now !== undefined && now.state.doc.toString() !== props.text) now.dispatch({ changes: { from: 0, to: now.state.doc.length, insert: props.text } });
  }, [props.text]);
  useEffect(() => view.current?.dispatch({ effects: checkAnew.of(null) }), [props.checkedFor]);
  return <div ref={place} className="try-editor" />;
}

/** To a place in the text, as from a list of what is wrong. */
export function goTo(pointer: string): void {
  const dom = document.querySelector<HTMLElement>(".try-editor .cm-editor");
  const view = dom === null ? null : EditorView.findFromDOM(dom);
  if (view === null) return;
  const { from, to } = placeOf(view.state, pathOf(pointer));
  view.dispatch({ selection: { anchor: from, head: to }, scrollIntoView: true });
  view.focus();
}

function extensionsOf(props: { current: EditorProps }) {
  const nonce = document.querySelector<HTMLMetaElement>('meta[name="style-nonce"]')?.content ?? "";
  const run = () => {
    props.current.onRun();
    return true;
  };
  return [
    EditorView.cspNonce.of(nonce),
    lineNumbers(),
    history(),
    drawSelection(),
    indentOnInput(),
    indentUnit.of("  "),
    bracketMatching(),
    closeBrackets(),
    highlightActiveLine(),
    json(),
    syntaxHighlighting(classHighlighter),
    autocompletion({ override: [(context) => completed(context, props.current)], interactionDelay: 0 }),
    hoverTooltip((view, at) => hovered(view, at, props.current.schema)),
    linter((view) => marked(view, props.current), {
      delay: SETTLED_MS,
      needsRefresh: ({ transactions }) => transactions.some(({ effects }) => effects.some((each) => each.is(checkAnew))),
    }),
    lintGutter(),
    Prec.highest(keymap.of([{ key: "Mod-Enter", run }])),
    keymap.of([...closeBracketsKeymap, ...defaultKeymap, ...historyKeymap, ...completionKeymap, ...lintKeymap]),
    EditorView.lineWrapping,
    EditorView.domEventHandlers({ beforeinput: replaced }),
    EditorView.contentAttributes.of({ "aria-label": props.current.label, tabindex: "0" }),
    EditorView.updateListener.of((update) => {
      if (update.docChanged) props.current.onChange(update.state.doc.toString());
    }),
  ];
}

/** Text in the place of other text. Browsers that are left to do that keep the colour of what goes by a `style` attribute,
 * which the page's policy forbids. */
function replaced(event: InputEvent, view: EditorView): boolean {
  if (event.inputType !== "insertText" || event.data === null || view.composing || view.state.selection.main.empty) return false;
  event.preventDefault();
  view.dispatch(view.state.replaceSelection(event.data), { userEvent: "input.type", scrollIntoView: true });
  return true;
}

// ---------------------------------------------------------------- what is wrong

async function marked(view: EditorView, { schema, check, onMarks }: EditorProps): Promise<Diagnostic[]> {
  const state = view.state;
  if (state.doc.toString().trim() === "") {
    onMarks(undefined); // nothing was written, so nothing is wrong
    return [];
  }
  const broken = brokenAt(state);
  if (broken !== undefined) {
    onMarks([{ pointer: "", detail: `line ${state.doc.lineAt(broken.from).number} ${broken.detail}` }]);
    return [{ ...broken, severity: "error", message: broken.detail }];
  }
  const spec = JSON.parse(state.doc.toString()) as Json;
  const remote = await check(spec).catch(() => undefined);
  const known = new Set(remote?.map(({ pointer }) => pointer));
  const local = schema
    .findings(spec)
    .map(({ path, detail }) => ({ pointer: pointerOf(path), detail }))
    .filter(({ pointer }) => ![...known].some((each) => each === pointer || each.startsWith(`${pointer}/`)));
  const marks = [...(remote ?? []), ...local];
  if (view.state.doc === state.doc) onMarks(remote === undefined && marks.length === 0 ? undefined : marks); // the cursor may have moved
  return marks.map(({ pointer, detail }) => ({ ...placeOf(state, pathOf(pointer)), severity: "error", message: detail }));
}

// ---------------------------------------------------------------- what may stand here

function completed(context: CompletionContext, { schema, names }: EditorProps): CompletionResult | null {
  const { state, pos } = context;
  const inner = treeOf(state).resolveInner(pos, -1);
  const node = /^[[{]$/.test(inner.name) ? inner.parent! : inner;
  const spec = valueOf(state, rootOf(state));
  const isText = node.name === "String" || node.name === "PropertyName";
  const token = isText ? { from: node.from, text: state.sliceDoc(node.from, pos) } : context.matchBefore(/[\w.]+/);
  if (token === null && !context.explicit) return null;
  const from = token?.from ?? pos;
  const holder = node.name === "PropertyName" ? node.parent!.parent! : node;
  const property = node.name === "Property" ? node : node.parent?.name === "Property" ? node.parent : null;
  const isName = node.name === "PropertyName" || (property === null && holder.name === "Object");
  if (isName) {
    const isNamed = /^"?\s*:/.test(state.sliceDoc(pos, pos + 20));
    const path = pathTo(state, holder);
    const options = schema.absent(path, without(spec, path, token?.text ?? "")).map(([name, member, isNeeded]): Completion => ({
      label: `"${name}"`,
      detail: isNeeded ? "needed" : kindOf(member, schema),
      info: () => saying(member, schema),
      boost: isNeeded ? 1 : 0,
      apply: applied(`"${name}"${isNamed ? "" : `: ${JSON.stringify(schema.smallest(member))}`}`),
      type: "property",
    }));
    return { from, to: pos, options, validFor: /^"?[\w]*$/ };
  }
  const path = node.name === "Array" || property === null ? [...pathTo(state, node), ...(node.name === "Array" ? [0] : [])] : pathTo(state, property);
  const known = names[String(path.findLast((step) => typeof step === "string"))] ?? [];
  const values = [...known.map((value) => ({ value, schema: {} as Schema })), ...schema.values(path, spec)];
  const options = values.map(({ value, schema: of }): Completion => ({
    label: labelOf(value),
    info: () => saying(of, schema),
    apply: applied(JSON.stringify(value)),
    type: "constant",
  }));
  return options.length === 0 ? null : { from, to: pos, options, validFor: /^"?[\w.-]*$/ };
}

function labelOf(value: Json): string {
  if (typeof value !== "object" || value === null || Array.isArray(value)) return JSON.stringify(value);
  return JSON.stringify(value.op ?? value.type ?? value);
}

/** The value as if the member that is being written were not there. */
function without(spec: Json, path: Path, token: string): Json {
  const name = token.replaceAll('"', "");
  const [step, ...rest] = path;
  if (typeof spec !== "object" || spec === null) return spec;
  if (step === undefined) return Array.isArray(spec) ? spec : Object.fromEntries(Object.entries(spec).filter(([each]) => each !== name));
  if (Array.isArray(spec)) return spec.map((each, at) => (at === step ? without(each, rest, token) : each));
  return { ...spec, [step]: without(spec[String(step)] ?? null, rest, token) };
}

/** Puts text in the place of what was begun, with the quote that closes it, and the cursor where something is to be filled in. */
function applied(insert: string) {
  return (view: EditorView, _: Completion, from: number) => {
    const head = view.state.selection.main.head; // more may have been typed since there was something to choose from
    const begun = view.state.sliceDoc(from, head + 1);
    const to = head - from < begun.length && /^".*"$/.test(begun) ? head + 1 : head;
    const hole = insert.match(/""|\[\]|\{\}/);
    const cursor = from + (hole?.index === undefined ? insert.length : hole.index + 1);
    view.dispatch({ changes: { from, to, insert }, selection: { anchor: cursor }, userEvent: "input.complete" });
  };
}

// ---------------------------------------------------------------- what something means

function saying(schema: Schema, all: SpecSchema): HTMLElement | null {
  const said = [schema.description, kindOf(schema, all)].filter((each) => each !== undefined && each !== "any");
  if (said.length === 0) return null;
  const dom = document.createElement("div");
  dom.className = "try-saying";
  for (const text of said) dom.append(Object.assign(document.createElement("p"), { textContent: text }));
  return dom;
}

function hovered(view: EditorView, at: number, schema: SpecSchema) {
  const { state } = view;
  const node = treeOf(state).resolveInner(at, 1);
  const property = node.name === "PropertyName" || node.parent?.name === "Property" ? node.parent : null;
  if (property === null || property.name !== "Property") return null;
  const spec = valueOf(state, rootOf(state));
  const found = schema.at(pathTo(state, property), spec);
  const meant = node.name === "PropertyName" || found === undefined ? found : tagged(schema, spec, pathTo(state, property), found, textOf(state, node));
  const dom = meant === undefined ? null : saying(meant, schema);
  if (dom === null) return null;
  dom.prepend(Object.assign(document.createElement("strong"), { textContent: nameOf(state, property) }));
  return { pos: node.from, end: node.to, above: true, create: () => ({ dom }) };
}

/** Of what says which operator or window it is: what that is. */
function tagged(schema: SpecSchema, spec: Json, path: Path, found: Schema, text: string): Schema {
  const holder = schema.at(path.slice(0, -1), spec);
  if (holder === undefined) return found;
  const tag = schema.tagOf(schema.options(holder));
  const meant = schema.options(holder).find((each) => tag !== undefined && tag === path.at(-1) && JSON.stringify(each.properties?.[tag]?.const) === text);
  return meant === undefined ? found : { ...(meant.description === undefined ? {} : { description: meant.description }), const: JSON.parse(text) };
}
