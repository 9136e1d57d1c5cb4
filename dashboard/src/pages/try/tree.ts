// JSON as the editor has it, also while it is half written: values, paths and places of its nodes.
import { ensureSyntaxTree, syntaxTree } from "@codemirror/language";
import type { EditorState } from "@codemirror/state";
import type { SyntaxNode } from "@lezer/common";

import type { Json, Path } from "./schema";

const VALUES = new Set(["Object", "Array", "String", "Number", "True", "False", "Null"]);

export function treeOf(state: EditorState) {
  return ensureSyntaxTree(state, state.doc.length, 200) ?? syntaxTree(state);
}

function children(node: SyntaxNode): SyntaxNode[] {
  const found: SyntaxNode[] = [];
  for (let child = node.firstChild; child !== null; child = child.nextSibling) found.push(child);
  return found;
}

export function rootOf(state: EditorState): SyntaxNode | undefined {
  return children(treeOf(state).topNode).find(({ name }) => VALUES.has(name));
}

export function textOf(state: EditorState, { from, to }: { from: number; to: number }): string {
  return state.sliceDoc(from, to);
}

function parsed(text: string): Json {
  try {
    return JSON.parse(text) as Json;
  } catch {
    return text.replaceAll('"', "");
  }
}

export function nameOf(state: EditorState, property: SyntaxNode): string {
  const name = property.getChild("PropertyName");
  return name === null ? "" : String(parsed(textOf(state, name)));
}

export function valueNodeOf(property: SyntaxNode): SyntaxNode | undefined {
  return children(property).find(({ name }) => VALUES.has(name));
}

export function valueOf(state: EditorState, node: SyntaxNode | undefined): Json {
  if (node === undefined) return null;
  if (node.name === "Object") {
    const members = node.getChildren("Property").map((each) => [nameOf(state, each), valueOf(state, valueNodeOf(each))] as const);
    return Object.fromEntries(members);
  }
  if (node.name === "Array") return children(node).filter(({ name }) => VALUES.has(name)).map((each) => valueOf(state, each));
  return parsed(textOf(state, node));
}

/** The path of the value, or of the member, that a node belongs to. */
export function pathTo(state: EditorState, node: SyntaxNode): Path {
  const path: (string | number)[] = [];
  for (let here = node; here.parent !== null; here = here.parent) {
    if (here.name === "Property") path.unshift(nameOf(state, here));
    else if (here.parent.name === "Array" && VALUES.has(here.name)) {
      const before = children(here.parent).filter(({ name, from }) => VALUES.has(name) && from < here.from);
      path.unshift(before.length);
    }
  }
  return path;
}

/** Where a mark of a path belongs: at the value; of an object or a list at what begins it; of what is not there, at what would hold it. */
export function placeOf(state: EditorState, path: Path): { from: number; to: number } {
  let node = rootOf(state);
  let key: SyntaxNode | null = null;
  for (const step of path) {
    const next: SyntaxNode | undefined =
      typeof step === "number" || node?.name === "Array"
        ? node?.name === "Array"
          ? children(node).filter(({ name }) => VALUES.has(name))[Number(step)]
          : undefined
        : node?.getChildren("Property").find((each) => nameOf(state, each) === step);
    if (next === undefined) break;
    key = next.name === "Property" ? next.getChild("PropertyName") : null;
    const value: SyntaxNode | undefined = next.name === "Property" ? valueNodeOf(next) : next;
    if (value === undefined) break;
    node = value;
  }
  if (node === undefined) return { from: 0, to: Math.min(1, state.doc.length) };
  if (key !== null && (node.name === "Object" || node.name === "Array")) return { from: key.from, to: key.to };
  return node.name === "Object" || node.name === "Array" ? { from: node.from, to: node.from + 1 } : { from: node.from, to: node.to };
}

/** Where it is no JSON, if anywhere. */
export function brokenAt(state: EditorState): { from: number; to: number; detail: string } | undefined {
  const text = state.doc.toString();
  try {
    JSON.parse(text);
    return undefined;
  } catch {
    let found: { from: number; to: number } | undefined;
    treeOf(state).iterate({
      enter: ({ type, from, to }) => {
        if (type.isError && found === undefined) found = { from: Math.max(0, from === to ? from - 1 : from), to: Math.max(to, 1) };
      },
    });
    const { from, to } = found ?? { from: 0, to: Math.min(1, text.length) };
    return { from, to: Math.min(to, text.length), detail: "is not JSON here" };
  }
}
