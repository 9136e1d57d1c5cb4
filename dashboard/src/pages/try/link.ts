// A specification in the part of an address that no browser sends anywhere: packed, so that it stays short.

async function piped(bytes: Uint8Array<ArrayBuffer>, through: CompressionStream | DecompressionStream): Promise<Uint8Array<ArrayBuffer>> {
  const stream = new Blob([bytes]).stream().pipeThrough(through);
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

export async function packed(text: string): Promise<string> {
  const bytes = await piped(new TextEncoder().encode(text), new CompressionStream("deflate-raw"));
  const binary = Array.from(bytes, (byte) => String.fromCharCode(byte)).join("");
  return btoa(binary).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}

/** Undefined: it is no such text. */
export async function unpacked(text: string): Promise<string | undefined> {
  try {
    const binary = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
    const bytes = Uint8Array.from(binary, (char) => char.charCodeAt(0));
    return new TextDecoder().decode(await piped(bytes, new DecompressionStream("deflate-raw")));
  } catch {
    return undefined;
  }
}

/** The specification in this page's address. */
export function linkedSpec(): Promise<string | undefined> {
  const given = new URLSearchParams(location.hash.slice(1)).get("spec");
  return given === null ? Promise.resolve(undefined) : unpacked(given);
}

/** Keeps it there. */
export async function linkSpec(text: string): Promise<void> {
  const path = location.pathname;
  const spec = await packed(text);
  if (location.pathname === path) history.replaceState(history.state, "", `${path}${location.search}#spec=${spec}`);
}
