// Who may do what, and who did what when. For admins: others are told so.
import { Button, Code, CopyButton, Group, Modal, NativeSelect, Stack, Text, TextInput } from "@mantine/core";
import { createColumnHelper } from "@tanstack/react-table";
import { useState } from "react";
import { useSearchParams } from "wouter";

import { api, good } from "../api";
import { Answered, Badge, Confirmed, Curl, Empty, Failure, Json, Page, Rows, Section, To, curlOf } from "../parts";
import { addressOf, lookAgain, noticeEnd, useIsAdmin, useLive, useSession, type Asked } from "../queries";
import { Time, inZone, ofZone, span, useZone } from "../time";
import type { components } from "@millrace/client";

type Token = components["schemas"]["TokenView"];
type NewToken = components["schemas"]["NewTokenView"];
type Entry = components["schemas"]["AuditEntryView"];
type Role = components["schemas"]["TokenRequest"]["role"];

const MAY: Record<Role, string> = {
  reader: "reads streams, jobs, stores and instances",
  writer: "the same; makes, changes and deletes streams and jobs, posts records",
  admin: "all: also keys, the audit, draining",
  instance: "runs tasks: for a machine, not for people",
};

export default function KeysPage() {
  const isAdmin = useIsAdmin();
  if (!isAdmin) {
    return (
      <Page title="Keys">
        <Empty>Only an admin sees keys and what was done with them. Sign in with an admin's key.</Empty>
      </Page>
    );
  }
  return (
    <Page title="Keys" beside={<Curl path="/v1/tokens" />}>
      <Keys />
      <Audit />
    </Page>
  );
}

function Keys() {
  const tokens = useLive("/v1/tokens", { query: { limit: 1000 } }, 5_000);
  const [params, setParams] = useSearchParams();
  const withRevoked = params.get("revoked") === "shown";
  const toggle = () =>
    setParams((before) => {
      const after = new URLSearchParams(before);
      if (withRevoked) after.delete("revoked");
      else after.set("revoked", "shown");
      return after;
    });
  return (
    <Section title="API keys" beside={<NewKey />}>
      <Answered asked={tokens} what="The keys">
        {({ now }) => {
          const revoked = now.items.filter((key) => key.revoked_at !== null).length;
          const shown = now.items.filter((key) => withRevoked || key.revoked_at === null);
          return (
            <Stack gap="xs">
              {shown.length === 0 ? <Empty>No key is valid but those of running instances.</Empty> : <Rows caption="Keys" columns={KEYS} rows={shown} idOf={({ id }) => id} />}
              {revoked > 0 && (
                <Button size="compact-sm" variant="default" className="narrow" onClick={toggle}>
                  {withRevoked ? "hide those that are revoked" : `show ${revoked} that ${revoked === 1 ? "is" : "are"} revoked`}
                </Button>
              )}
            </Stack>
          );
        }}
      </Answered>
    </Section>
  );
}

/** A key is shown once: the dialog with it closes by its button alone. */
function NewKey() {
  const [isOpen, open] = useState(false);
  const [name, setName] = useState("");
  const [role, setRole] = useState<Role>("reader");
  const [made, setMade] = useState<NewToken | null>(null);
  const [error, setError] = useState<unknown>(null);
  const begin = () => {
    [setName(""), setRole("reader"), setMade(null), setError(null), open(true)];
  };
  const make = async () => {
    try {
      setMade(await good<NewToken>(api.POST("/v1/tokens", { body: { role, name } })));
      await lookAgain();
    } catch (failure) {
      noticeEnd(failure);
      setError(failure);
    }
  };
  return (
    <>
      <Button size="compact-md" variant="default" onClick={begin}>
        make a key
      </Button>
      <Modal
        opened={isOpen}
        onClose={() => open(false)}
        title={made === null ? "Make a key?" : `The key ${made.name}`}
        lockScroll={false}
        closeOnClickOutside={made === null}
        closeOnEscape={made === null}
        withCloseButton={made === null}
        closeButtonProps={{ "aria-label": "close" }}
      >
        {made === null ? (
          <form
            onSubmit={(event) => {
              event.preventDefault();
              void make();
            }}
          >
            <Stack>
              <TextInput label="What it is for" value={name} maxLength={200} onChange={(event) => setName(event.currentTarget.value)} data-autofocus />
              <NativeSelect
                label="What its holder may do"
                value={role}
                onChange={(event) => setRole(event.currentTarget.value as Role)}
                data={Object.keys(MAY)}
                description={MAY[role]}
              />
              <Code block tabIndex={0}>
                {curlOf("/v1/tokens", "POST", { role, name })}
              </Code>
              {error !== null && <Failure error={error} what="It was not made" />}
              <Group justify="flex-end">
                <Button variant="default" onClick={() => open(false)}>
                  cancel
                </Button>
                <Button type="submit">make</Button>
              </Group>
            </Stack>
          </form>
        ) : (
          <Stack>
            <Text>This is shown once: keep it where you keep secrets. Who has it is {made.role}, until it is revoked.</Text>
            <Code block tabIndex={0} aria-label="The secret">
              {made.key}
            </Code>
            <Group justify="flex-end">
              <CopyButton value={made.key}>
                {({ copied, copy }) => (
                  <Button variant="default" onClick={copy}>
                    {copied ? "copied" : "copy"}
                  </Button>
                )}
              </CopyButton>
              <Button onClick={() => open(false)} data-autofocus>
                I have it
              </Button>
            </Group>
          </Stack>
        )}
      </Modal>
    </>
  );
}

function Revoke({ token }: { token: Token }) {
  const mine = useSession().data?.name === token.name;
  return (
    <Confirmed
      label="revoke"
      question={`revoke ${token.name}?`}
      meaning={`Whoever uses it is refused from now on, elsewhere within a second or so, and its sessions end. ${
        token.role === "instance" ? "An instance that runs with it loses its tasks to others and ends. " : ""
      }${mine ? "You may be signed in with this key: you are signed out then. " : ""}It can not be made valid again.`}
      path={`/v1/tokens/${token.id}`}
      method="DELETE"
      isDangerous
      act={async () => {
        await good(api.DELETE("/v1/tokens/{token}", { params: { path: { token: token.id } } }));
        await lookAgain();
      }}
    />
  );
}

function Ago({ at }: { at: string | null }) {
  if (at === null) return <>never</>;
  const ms = Date.now() - Date.parse(at);
  return <>{ms < 60_000 ? "within the last minute" : `${span(ms)} ago`}</>;
}

const key = createColumnHelper<Token>();
const KEYS = [
  key.accessor("name", { header: "key", cell: (cell) => <span className="breakable">{cell.getValue()}</span> }),
  key.accessor("role", { header: "role", cell: (cell) => <Badge kind={cell.getValue()} /> }),
  key.accessor((row) => row.last_used_at ?? "", { id: "used", header: "used last", cell: (cell) => <Ago at={cell.getValue() || null} /> }),
  key.accessor("created_at", { header: "made", cell: (cell) => <Time ms={Math.floor(Date.parse(cell.getValue()) / 1000) * 1000} /> }),
  key.display({
    id: "did",
    header: "did",
    cell: ({ row }) => <To page={`/keys?who=${encodeURIComponent(row.original.id)}`}>what it did</To>,
  }),
  key.display({
    id: "end",
    header: "",
    cell: ({ row }) =>
      row.original.revoked_at === null ? (
        <Revoke token={row.original} />
      ) : (
        <>
          revoked <Time ms={Math.floor(Date.parse(row.original.revoked_at) / 1000) * 1000} />
        </>
      ),
  }),
];

// ---------------------------------------------------------------- who did what when

const FILTERS = ["who", "what", "resource"] as const;
const LABELS = { who: "Who (key's name or id)", what: "What (operation)", resource: "Resource" };
const ASKED = [...FILTERS, "from", "until", "cursor"];
const PAGE_ENTRIES = 50;

function Audit() {
  const [params, setParams] = useSearchParams();
  const query = { ...Object.fromEntries(ASKED.flatMap((name) => (params.get(name) ? [[name, params.get(name)!]] : []))), limit: PAGE_ENTRIES };
  const asked = { query } as Asked<"/v1/audit">;
  const audit = useLive("/v1/audit", asked, 5_000);
  const go = (change: Record<string, string>) =>
    setParams((before) => {
      const after = new URLSearchParams(before);
      after.delete("cursor");
      for (const [name, value] of Object.entries(change)) {
        if (value === "") after.delete(name);
        else after.set(name, value);
      }
      return after;
    });
  const isChosen = ASKED.some((name) => params.has(name));
  return (
    <Section title="Who did what when" beside={<Curl path={addressOf("/v1/audit", asked)} />}>
      <Stack gap="xs">
        <Filters key={params.toString()} params={params} go={go} />
        <Answered asked={audit} what="The audit">
          {({ now }) => (
            <>
              {now.items.length === 0 ? (
                <Empty>
                  {isChosen
                    ? "Nothing of that kind was done, or it was longer ago than entries are kept."
                    : "Nothing was changed yet. Each change of streams, subscriptions, jobs, instances and keys comes here, and each sign-in."}
                </Empty>
              ) : (
                <Rows caption="Who did what when" columns={ENTRIES} rows={now.items} />
              )}
              <Group>
                {params.has("cursor") && (
                  <Button size="compact-sm" variant="default" onClick={() => go({})}>
                    latest
                  </Button>
                )}
                {now.next !== null && (
                  <Button size="compact-sm" variant="default" onClick={() => go({ cursor: now.next! })}>
                    earlier
                  </Button>
                )}
              </Group>
            </>
          )}
        </Answered>
      </Stack>
    </Section>
  );
}

function Filters({ params, go }: { params: URLSearchParams; go: (change: Record<string, string>) => void }) {
  const zone = useZone();
  const at = (name: string) => (params.has(name) ? inZone(Number(params.get(name)), zone).replace(" ", "T").slice(0, 19) : "");
  const ms = (text: string) => (text === "" ? "" : String(ofZone(text, zone) ?? ""));
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault();
        const given = new FormData(event.currentTarget);
        const text = (name: string) => String(given.get(name) ?? "").trim();
        go({ ...Object.fromEntries(FILTERS.map((name) => [name, text(name)])), from: ms(text("from")), until: ms(text("until")) });
      }}
    >
      <Group align="flex-end" gap="xs">
        {FILTERS.map((name) => (
          <TextInput key={name} name={name} size="xs" label={LABELS[name]} defaultValue={params.get(name) ?? ""} />
        ))}
        {(["from", "until"] as const).map((name) => (
          <TextInput
            key={`${name} ${zone}`}
            name={name}
            size="xs"
            type="datetime-local"
            step={1}
            label={`${name === "from" ? "From" : "Until"} (${zone === "utc" ? "UTC" : "local time"})`}
            defaultValue={at(name)}
          />
        ))}
        <Button type="submit" size="xs" variant="default">
          find
        </Button>
        {ASKED.some((name) => params.has(name)) && (
          <Button size="xs" variant="subtle" onClick={() => go(Object.fromEntries(ASKED.map((name) => [name, ""])))}>
            all
          </Button>
        )}
      </Group>
    </form>
  );
}

/** Where what was changed is shown, if it has a page. */
function pageOf(resource: string): string | null {
  const [kind, name] = resource.split("/");
  if (name === undefined) return null;
  if (kind === "jobs" || kind === "streams") return `/${kind}/${encodeURIComponent(name)}`;
  return kind === "instances" ? "/instances" : null;
}

function Resource({ name }: { name: string }) {
  const page = pageOf(name);
  return page === null ? <span className="breakable">{name}</span> : <To page={page}>{name}</To>;
}

const SHORT = 80;

/** What was sent; of much the names of its members first. */
function Change({ change }: { change: NonNullable<Entry["change"]> }) {
  if (JSON.stringify(change).length <= SHORT) return <Json value={change} />;
  return (
    <details>
      <summary>{Object.keys(change).join(", ")}</summary>
      <Json value={change} />
    </details>
  );
}

/** What people call an operation: `pause_job` is `pause job`. */
function words(operation: string): string {
  return operation.replaceAll("_", " ");
}

const entry = createColumnHelper<Entry>();
const ENTRIES = [
  entry.accessor("at", { header: "at", cell: (cell) => <Time ms={Date.parse(cell.getValue())} /> }),
  entry.accessor("who", {
    header: "who",
    cell: ({ row: { original: by } }) => (by.who === "" ? "nobody known" : `${by.who}${by.role === by.who ? "" : ` (${by.role})`}`),
  }),
  entry.accessor("what", {
    header: "what",
    cell: ({ row: { original: by } }) => (by.status >= 400 ? <Badge kind={`refused: ${words(by.what)}`} /> : words(by.what)),
  }),
  entry.accessor("resource", { header: "resource", cell: (cell) => <Resource name={cell.getValue()} /> }),
  entry.accessor((row) => (row.change === null ? "" : JSON.stringify(row.change)), {
    id: "change",
    header: "with",
    enableSorting: false,
    cell: ({ row: { original: by } }) => (by.change === null ? "" : <Change change={by.change} />),
  }),
  entry.accessor("status", { header: "status", meta: { isNumber: true } }),
  entry.accessor("request_id", { header: "request", enableSorting: false, cell: (cell) => <Code>{cell.getValue().slice(0, 8) || "–"}</Code> }),
];
