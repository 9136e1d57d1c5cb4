// What every page is made of.
import { Alert, Anchor, Button, Code, CopyButton, Group, Loader, Modal, Popover, Stack, Table, Text, Title } from "@mantine/core";
import { ApiError } from "@millrace/client";
import {
  flexRender,
  getCoreRowModel,
  getSortedRowModel,
  useReactTable,
  type Cell,
  type ColumnDef,
  type RowData,
  type SortingState,
} from "@tanstack/react-table";
import { useEffect, useId, useState, type ReactNode } from "react";
import { Link } from "wouter";

import { noticeEnd } from "./queries";

declare module "@tanstack/react-table" {
  // eslint-disable-next-line
  interface ColumnMeta<TData extends RowData, TValue> {
    isNumber?: boolean;
  }
}

export function Page({ title, beside, children }: { title: string; beside?: ReactNode; children: ReactNode }) {
  useEffect(() => {
    document.title = `${title} · Millrace`;
  }, [title]);
  return (
    <Stack gap="md">
      <Group justify="space-between" align="center">
        <Title order={1} size="h2" className="breakable">
          {title}
        </Title>
        <Group gap="xs">{beside}</Group>
      </Group>
      {children}
    </Stack>
  );
}

export function Section({ title, beside, children }: { title: string; beside?: ReactNode; children: ReactNode }) {
  const id = useId();
  return (
    <section aria-labelledby={id}>
      <Group justify="space-between" mb="xs">
        <Title order={2} size="h4" id={id}>
          {title}
        </Title>
        <Group gap="xs">{beside}</Group>
      </Group>
      {children}
    </section>
  );
}

export function To({ page, children }: { page: string; children: ReactNode }) {
  return (
    <Anchor component={Link} href={page} className="breakable" underline="always">
      {children}
    </Anchor>
  );
}

export function Badge({ kind }: { kind: string }) {
  return <span className={`badge badge-${kind.split(":")[0]!.replaceAll(" ", "-")}`}>{kind}</span>;
}

/** Whether it is that there is no such thing: then its page says what to do. */
export function isMissing(error: unknown): boolean {
  return error instanceof ApiError && error.status === 404;
}

/** Why something is not shown. */
export function Failure({ error, what }: { error: unknown; what: string }) {
  const problem = error instanceof ApiError ? error.problem : undefined;
  return (
    <Alert color="red" variant="outline" role="alert" title={`${what}: ${problem?.title ?? "no answer"}`}>
      <Text size="sm">{problem?.detail ?? "The service did not answer; the page asks again."}</Text>
      {problem?.request_id !== undefined && (
        <Text size="xs" c="dimmed">
          request {problem.request_id}
        </Text>
      )}
    </Alert>
  );
}

interface Asked<T> {
  readonly data: T | undefined;
  readonly error: unknown;
}

/** What was asked for; until it is there that it comes, else why not. What was there stays, with the reason. */
export function Answered<T>({ asked, what, children }: { asked: Asked<T>; what: string; children: (data: T) => ReactNode }) {
  if (asked.data === undefined) {
    return asked.error ? <Failure error={asked.error} what={what} /> : <Loader size="sm" role="progressbar" aria-label={`${what} is loading`} />;
  }
  return (
    <>
      {asked.error ? <Failure error={asked.error} what={what} /> : null}
      {children(asked.data)}
    </>
  );
}

/** What to do where nothing is. */
export function Empty({ children, curl }: { children: ReactNode; curl?: string }) {
  return (
    <Stack gap="xs" className="empty">
      <Text>{children}</Text>
      {curl !== undefined && (
        <Code block tabIndex={0}>
          {curl}
        </Code>
      )}
    </Stack>
  );
}

/** `condition`: a change that is made only where the resource still is what somebody looked at. */
export function curlOf(path: string, method = "GET", body?: unknown, condition?: string): string {
  const verb = (method === "GET" ? "" : ` -X ${method}`) + (condition === undefined ? "" : ` -H 'If-Match: ${condition}'`);
  const json = body === undefined ? "" : ` \\\n  --json '${JSON.stringify(body).replaceAll("'", "'\\''")}'`;
  return `curl -sS${verb} -H "Authorization: Bearer $KEY" '${location.origin}${path}'${json}`;
}

interface Requested {
  readonly path: string;
  readonly method?: string;
  readonly body?: unknown;
}

/** The request behind what is shown, to be made elsewhere: with a key, for a session is this browser's. */
export function Curl(request: Requested) {
  return (
    <Popover withArrow width="min(36rem, 92vw)" position="bottom-end" trapFocus returnFocus>
      <Popover.Target>
        <Button size="compact-sm" variant="default">
          copy as curl
        </Button>
      </Popover.Target>
      <Popover.Dropdown>
        <CurlText {...request} />
      </Popover.Dropdown>
    </Popover>
  );
}

/** Written out when somebody wants it: of a trial it is thousands of records. */
function CurlText({ path, method = "GET", body }: Requested) {
  const text = curlOf(path, method, body);
  return (
    <Stack gap="xs">
      <Code block tabIndex={0} className="curl">
        {text}
      </Code>
      <CopyButton value={text}>
        {({ copied, copy }) => (
          <Button size="compact-sm" onClick={copy}>
            {copied ? "copied" : "copy"}
          </Button>
        )}
      </CopyButton>
    </Stack>
  );
}

/** A change that says what it does before it is made. `children`: what is to be chosen for it, and what it would mean. */
export function Confirmed(props: {
  label: string;
  question: string;
  meaning: ReactNode;
  path: string;
  method?: "POST" | "PUT" | "PATCH" | "DELETE";
  body?: unknown;
  condition?: string | undefined;
  isDisabled?: boolean;
  isDangerous?: boolean;
  isReady?: boolean;
  isWide?: boolean;
  children?: ReactNode;
  act: () => Promise<unknown>;
}) {
  const [isOpen, open] = useState(false);
  const [isBusy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const act = async () => {
    setBusy(true);
    try {
      await props.act();
      open(false);
    } catch (failure) {
      noticeEnd(failure);
      setError(failure);
    } finally {
      setBusy(false);
    }
  };
  const begin = () => {
    setError(null);
    open(true);
  };
  return (
    <>
      <Button size="compact-md" variant="default" onClick={begin} disabled={props.isDisabled ?? false}>
        {props.label}
      </Button>
      <Modal
        opened={isOpen}
        onClose={() => open(false)}
        title={props.question}
        size={props.isWide ? "xl" : "md"}
        lockScroll={false}
        closeButtonProps={{ "aria-label": "close" }}
      >
        <Stack>
          <Text component="div">{props.meaning}</Text>
          {props.children}
          <Code block tabIndex={0} className="curl">
            {curlOf(props.path, props.method ?? "POST", props.body, props.condition)}
          </Code>
          {error !== null && <Failure error={error} what="It was not done" />}
          <Group justify="flex-end">
            <Button variant="default" onClick={() => open(false)} data-autofocus>
              cancel
            </Button>
            <Button {...(props.isDangerous ? { color: "red" } : {})} loading={isBusy} disabled={props.isReady === false} onClick={act}>
              {props.label}
            </Button>
          </Group>
        </Stack>
      </Modal>
    </>
  );
}

/** Rows that are sorted by a click on a heading; with `idOf` a dialog of one stays that row's when others come before it. */
export function Rows<T>({ rows, columns, caption, idOf }: { rows: T[]; columns: ColumnDef<T, any>[]; caption: string; idOf?: (row: T) => string }) {
  const [sorting, setSorting] = useState<SortingState>([]);
  const table = useReactTable({
    data: rows,
    columns,
    state: { sorting },
    onSortingChange: setSorting,
    autoResetAll: false, // rows come anew every two seconds
    getCoreRowModel: getCoreRowModel(),
    getSortedRowModel: getSortedRowModel(),
    ...(idOf && { getRowId: idOf }),
  });
  const order = { asc: "ascending", desc: "descending" } as const;
  return (
    <div className="scrolled" role="region" aria-label={caption} tabIndex={0}>
      <Table verticalSpacing={6} highlightOnHover>
        <Table.Thead>
          {table.getHeaderGroups().map((group) => (
            <Table.Tr key={group.id}>
              {group.headers.map(({ id, column, getContext }) => {
                const sorted = column.getIsSorted();
                return (
                  <Table.Th
                    key={id}
                    className={column.columnDef.meta?.isNumber ? "number" : ""}
                    aria-sort={sorted ? order[sorted] : "none"}
                  >
                    {column.getCanSort() ? (
                      <button type="button" className="sorter" onClick={column.getToggleSortingHandler()}>
                        {flexRender(column.columnDef.header, getContext())}
                        <span aria-hidden>{sorted ? (sorted === "asc" ? " ↑" : " ↓") : ""}</span>
                      </button>
                    ) : (
                      flexRender(column.columnDef.header, getContext())
                    )}
                  </Table.Th>
                );
              })}
            </Table.Tr>
          ))}
        </Table.Thead>
        <Table.Tbody>
          {table.getRowModel().rows.map((row) => (
            <Table.Tr key={row.id}>
              {row.getVisibleCells().map((cell) => (
                <Table.Td key={cell.id} className={cell.column.columnDef.meta?.isNumber ? "number" : ""}>
                  {shownIn(cell)}
                </Table.Td>
              ))}
            </Table.Tr>
          ))}
        </Table.Tbody>
      </Table>
    </div>
  );
}

/** Not as a component of its own: with columns that are made anew it would be another one each time, and a dialog in it closed. */
function shownIn<T>({ column, getContext }: Cell<T, unknown>): ReactNode {
  const { cell } = column.columnDef;
  return typeof cell === "function" ? (cell(getContext()) as ReactNode) : cell;
}

const ONE_LINE = 100;

/** A value as JSON: in a line where it fits there. */
export function Json({ value }: { value: unknown }) {
  const lines = JSON.stringify(value, null, 1);
  const line = lines.replace(/\n */g, " "); // in texts a line's end is escaped: these are between members
  return <div className="json">{line.length <= ONE_LINE ? line : lines}</div>;
}

/** Facts by name. */
export function Facts({ facts }: { facts: [string, ReactNode][] }) {
  return (
    <dl className="facts">
      {facts.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}
