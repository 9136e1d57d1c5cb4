// What the schema of a job says about a place in it: which members may be there, which values, what is wrong. Pure.

export interface Schema {
  $ref?: string;
  type?: string | string[];
  properties?: Record<string, Schema>;
  additionalProperties?: boolean | Schema;
  items?: Schema;
  enum?: unknown[];
  const?: unknown;
  oneOf?: Schema[];
  anyOf?: Schema[];
  discriminator?: { propertyName: string; mapping: Record<string, string> };
  required?: string[];
  description?: string;
  default?: unknown;
  minimum?: number;
  maximum?: number;
  pattern?: string;
}

export type Path = readonly (string | number)[];
export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };

export interface Finding {
  readonly path: Path;
  readonly detail: string;
}

export function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

export function pointerOf(path: Path): string {
  return path.map((step) => `/${String(step).replaceAll("~", "~0").replaceAll("/", "~1")}`).join("");
}

export function pathOf(pointer: string): Path {
  const steps = pointer.split("/").slice(1);
  return steps.map((step) => step.replaceAll("~1", "/").replaceAll("~0", "~")).map((step) => (/^\d+$/.test(step) ? Number(step) : step));
}

function typeOf(value: unknown): string {
  if (value === null) return "null";
  if (Array.isArray(value)) return "array";
  return typeof value;
}

function isOfType(value: unknown, schema: Schema): boolean {
  if (schema.const !== undefined) return schema.const === value;
  if (schema.type === undefined) return true;
  const kinds = [schema.type].flat();
  const kind = typeOf(value);
  return kinds.includes(kind) || (kind === "number" && kinds.includes("integer") && Number.isInteger(value));
}

export class SpecSchema {
  constructor(
    private readonly schemas: Record<string, Schema>,
    readonly root: Schema,
  ) {}

  /** The schema that a reference leads to; what is said beside the reference counts before it. */
  plain(schema: Schema): Schema {
    if (schema.$ref === undefined) return schema;
    const { $ref, ...beside } = schema;
    return { ...this.plain(this.schemas[$ref.slice($ref.lastIndexOf("/") + 1)] ?? {}), ...beside };
  }

  /** What a value may be, each a schema without alternatives. */
  options(schema: Schema): Schema[] {
    const plain = this.plain(schema);
    const alternatives = plain.oneOf ?? plain.anyOf;
    return alternatives === undefined ? [plain] : alternatives.flatMap((each) => this.options(each));
  }

  /** Of these, what this value is meant to be: by what tells them apart, else by its type. */
  meant(schema: Schema, value: unknown): Schema | undefined {
    const options = this.options(schema);
    if (options.length === 1) return options[0];
    const fitting = options.filter((each) => isOfType(value, each) || (isObject(value) && each.type === "object"));
    if (!isObject(value)) return fitting[0];
    const tag = this.tagOf(options);
    const told = tag === undefined ? undefined : fitting.find((each) => each.properties?.[tag]?.const === value[tag]);
    return told ?? (tag === undefined ? fitting.find((each) => (each.required ?? []).every((name) => name in value)) ?? fitting[0] : undefined);
  }

  /** The member whose constant tells alternatives apart (`op`, `type`). */
  tagOf(options: readonly Schema[]): string | undefined {
    const names = Object.entries(options.find((each) => each.properties)?.properties ?? {});
    return names.find(([, member]) => member.const !== undefined)?.[0];
  }

  /** The schema of a place in a value, if it says anything about it. */
  at(path: Path, value: unknown): Schema | undefined {
    let schema: Schema | undefined = this.root;
    let here = value;
    for (const step of path) {
      if (schema === undefined) return undefined;
      schema = this.member(schema, here, step);
      here = Array.isArray(here) || isObject(here) ? (here as Record<string | number, unknown>)[step] : undefined;
    }
    return schema === undefined ? undefined : this.described(schema);
  }

  private described(schema: Schema): Schema {
    const plain = this.plain(schema);
    return plain.description === undefined && schema.description !== undefined ? { ...plain, description: schema.description } : plain;
  }

  private member(schema: Schema, value: unknown, step: string | number): Schema | undefined {
    if (typeof step === "number") return this.meant(schema, value ?? [])?.items;
    const meant = this.meant(schema, value ?? {});
    if (meant === undefined) {
      const tag = this.tagOf(this.options(schema));
      return tag === step ? { oneOf: this.options(schema).flatMap((each) => each.properties?.[tag] ?? []) } : undefined;
    }
    const found = meant.properties?.[step];
    return found ?? (isObject(meant.additionalProperties) ? (meant.additionalProperties as Schema) : undefined);
  }

  /** Members that an object may have and has not. */
  absent(path: Path, value: unknown): [name: string, schema: Schema, isNeeded: boolean][] {
    const schema = this.at(path, value);
    if (schema === undefined) return [];
    const here = valueAt(value, path);
    const present = isObject(here) ? here : {};
    const meant = this.meant(schema, present);
    const tag = meant === undefined ? this.tagOf(this.options(schema)) : undefined;
    const members =
      tag !== undefined ? { [tag]: { ...this.member(schema, present, tag), description: "Which one it is." } } : (meant?.properties ?? {});
    const needed = new Set(meant?.required ?? (tag === undefined ? [] : [tag]));
    return Object.entries(members)
      .filter(([name]) => !(name in present))
      .map(([name, member]) => [name, this.plain(member), needed.has(name)] as [string, Schema, boolean])
      .sort((one, other) => Number(other[2]) - Number(one[2]));
  }

  /** Values that may stand at a place, as far as there are few. */
  values(path: Path, value: unknown): { value: Json; schema: Schema }[] {
    const schema = this.at(path, value);
    if (schema === undefined) return [];
    return this.options(schema).flatMap((each) => {
      if (each.const !== undefined) return [{ value: each.const as Json, schema: each }];
      if (each.enum !== undefined) return each.enum.map((one) => ({ value: one as Json, schema: each }));
      const kinds = [each.type ?? []].flat();
      if (kinds.includes("boolean")) return [true, false].map((one) => ({ value: one, schema: each }));
      if (kinds.includes("object")) return [{ value: this.smallest(each), schema: each }];
      if (typeof each.default === "number") return [{ value: each.default, schema: each }];
      return [];
    });
  }

  /** A value with what is needed, to be filled. */
  smallest(schema: Schema): Json {
    const [first] = this.options(schema);
    if (first === undefined) return null;
    if (first.const !== undefined) return first.const as Json;
    if (first.default !== undefined && first.default !== null) return first.default as Json;
    if (first.enum !== undefined) return (first.enum[0] ?? null) as Json;
    const kind = [first.type ?? "null"].flat()[0];
    if (kind === "object") {
      const needed = (first.required ?? []).map((name) => [name, this.smallest(first.properties?.[name] ?? {})] as const);
      return Object.fromEntries(needed.sort(([one], [other]) => Number(other === "op" || other === "type") - Number(one === "op" || one === "type")));
    }
    return { array: [], string: "", integer: first.minimum ?? 0, number: 0, boolean: false }[kind ?? ""] ?? null;
  }

  /** What is wrong, as far as the schema alone tells. */
  findings(value: unknown, schema: Schema = this.root, path: Path = []): Finding[] {
    const options = this.options(schema);
    const meant = this.meant(schema, value);
    if (meant === undefined || !isOfType(value, meant)) {
      const tag = this.tagOf(options);
      if (isObject(value) && tag !== undefined) {
        const known = options.flatMap((each) => each.properties?.[tag]?.const ?? []);
        const said = tag in value ? "is none of" : "is needed: one of";
        return [{ path: tag in value ? [...path, tag] : path, detail: `${tag} ${said} ${known.join(", ")}` }];
      }
      return [{ path, detail: `must be ${options.map((each) => [each.type ?? JSON.stringify(each.const)].flat().join(" or ")).join(" or ")}` }];
    }
    if (meant.enum !== undefined && !meant.enum.includes(value)) return [{ path, detail: `must be one of ${meant.enum.join(", ")}` }];
    if (typeof value === "number") return this.bounds(value, meant, path);
    if (typeof value === "string") {
      const isFit = meant.pattern === undefined || new RegExp(meant.pattern, "u").test(value);
      return isFit ? [] : [{ path, detail: `does not match ${meant.pattern}` }];
    }
    if (Array.isArray(value)) return value.flatMap((each, at) => (meant.items === undefined ? [] : this.findings(each, meant.items, [...path, at])));
    return isObject(value) ? this.ofMembers(value, meant, path) : [];
  }

  private bounds(value: number, schema: Schema, path: Path): Finding[] {
    if (schema.minimum !== undefined && value < schema.minimum) return [{ path, detail: `must be ${schema.minimum} or more` }];
    if (schema.maximum !== undefined && value > schema.maximum) return [{ path, detail: `must be ${schema.maximum} or less` }];
    return [];
  }

  private ofMembers(value: Record<string, unknown>, schema: Schema, path: Path): Finding[] {
    const lacking = (schema.required ?? []).filter((name) => !(name in value)).map((name) => ({ path, detail: `${name} is needed` }));
    const others = schema.additionalProperties;
    const inside = Object.entries(value).flatMap(([name, each]) => {
      const member = schema.properties?.[name] ?? (isObject(others) ? (others as Schema) : undefined);
      if (member !== undefined) return this.findings(each, member, [...path, name]);
      return others === false ? [{ path: [...path, name], detail: `${name} is not a known field` }] : [];
    });
    return [...lacking, ...inside];
  }

  /** The value without members that say what holds without them. */
  withoutDefaults(value: Json, schema: Schema = this.root): Json {
    const meant = this.meant(schema, value);
    if (meant === undefined) return value;
    if (Array.isArray(value)) return value.map((each) => (meant.items === undefined ? each : this.withoutDefaults(each, meant.items)));
    if (!isObject(value)) return value;
    const needed = new Set(meant.required ?? []);
    const kept = Object.entries(value).flatMap(([name, each]) => {
      const member = meant.properties?.[name] ?? (isObject(meant.additionalProperties) ? (meant.additionalProperties as Schema) : undefined);
      if (member === undefined) return [[name, each] as const];
      const standard = this.plain(member).default;
      const isStandard = !needed.has(name) && standard !== undefined && JSON.stringify(standard) === JSON.stringify(each);
      return isStandard ? [] : [[name, this.withoutDefaults(each as Json, member)] as const];
    });
    return Object.fromEntries(kept) as Json;
  }
}

export function valueAt(value: unknown, path: Path): unknown {
  let here = value;
  for (const step of path) here = Array.isArray(here) || isObject(here) ? (here as Record<string | number, unknown>)[step] : undefined;
  return here;
}

/** What a schema says of a value, in a line. */
export function kindOf(schema: Schema, all: SpecSchema): string {
  const kinds = all.options(schema).map((each) => (each.const !== undefined ? JSON.stringify(each.const) : (each.enum?.join(" | ") ?? [each.type ?? "any"].flat().join(" | "))));
  const standard = schema.default === undefined || typeof schema.default === "object" ? "" : `, by default ${JSON.stringify(schema.default)}`;
  return [...new Set(kinds)].join(" | ") + standard;
}
