// Numbers as people read them.
const WHOLE = new Intl.NumberFormat("en");

export function count(value: number): string {
  return WHOLE.format(value);
}

export function rate(perSecond: number | undefined): string {
  if (perSecond === undefined) return "–";
  if (perSecond === 0 || perSecond >= 10) return count(Math.round(perSecond));
  if (perSecond < 0.001) return "< 0.001";
  return perSecond < 0.1 ? perSecond.toPrecision(1) : perSecond.toFixed(1);
}

export function percent(share: number): string {
  return `${share > 0 && share < 0.095 ? (share * 100).toPrecision(1) : Math.round(share * 100)} %`;
}

export function bytes(value: number): string {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  while (value >= 1000 && at < units.length - 1) [value, at] = [value / 1000, at + 1];
  return `${at === 0 ? value : value.toFixed(1)} ${units[at]}`;
}

export function sum(values: Iterable<number>): number {
  let total = 0;
  for (const value of values) total += value;
  return total;
}
