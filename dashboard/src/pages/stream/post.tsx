// One record, posted by hand, and what the service answers.
import { Alert, Button, Group, Stack, Text, TextInput, Textarea } from "@mantine/core";
import { useState } from "react";

import { api, good, type Stream } from "../../api";
import { Curl, Empty, Failure, To } from "../../parts";
import { lookAgain, noticeEnd, queries, useMayWrite } from "../../queries";
import { ofZone, useZone } from "../../time";
import { parsedSpec } from "../try/bench";

interface Appended {
  readonly accepted: number;
  readonly offsets: readonly { partition: number; first: number; last: number }[];
  readonly warnings?: readonly { pointer: string; detail: string }[] | null;
}

export function Post({ stream }: { stream: Stream }) {
  const zone = useZone();
  const mayWrite = useMayWrite();
  const [key, setKey] = useState("");
  const [text, setText] = useState('{\n  "n": 1\n}');
  const [time, setTime] = useState("");
  const [answer, setAnswer] = useState<Appended>();
  const [error, setError] = useState<unknown>(null);
  const [isBusy, setBusy] = useState(false);
  if (stream.kind !== "user") return <Empty>Its job writes it, and nobody else.</Empty>;
  if (!mayWrite) return <Empty>To post records takes the role writer.</Empty>;
  const value = parsedSpec(text);
  const at = ofZone(time, zone);
  const body = { records: [{ ...(key === "" ? {} : { key }), value: value ?? null, ...(at === undefined ? {} : { timestamp: at }) }] };
  const post = async () => {
    setBusy(true);
    setError(null);
    setAnswer(undefined);
    try {
      setAnswer((await good(api.POST("/v1/streams/{stream}/records", { params: { path: { stream: stream.name } }, body: body as never }))) as Appended);
      await queries.invalidateQueries({ queryKey: ["streams", stream.name] });
      await lookAgain();
    } catch (failure) {
      noticeEnd(failure);
      setError(failure);
    } finally {
      setBusy(false);
    }
  };
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault();
        void post();
      }}
    >
      <Stack maw="40rem">
        <Group align="end">
          <TextInput label="Key" description="empty: none" value={key} onChange={(event) => setKey(event.currentTarget.value)} />
          <TextInput
            type="datetime-local"
            step="0.001"
            label={zone === "utc" ? "Time (UTC)" : "Time (local time)"}
            description="empty: when it arrives"
            value={time}
            onChange={(event) => setTime(event.currentTarget.value)}
          />
        </Group>
        <Textarea
          label="Value"
          autosize
          minRows={3}
          maxRows={16}
          spellCheck={false}
          classNames={{ input: "stream-value" }}
          value={text}
          onChange={(event) => setText(event.currentTarget.value)}
          error={value === undefined ? "is not JSON" : null}
        />
        <Group>
          <Button type="submit" loading={isBusy} disabled={value === undefined}>
            post the record
          </Button>
          <Curl path={`/v1/streams/${stream.name}/records`} method="POST" body={body} />
        </Group>
        {error !== null && <Refused error={error} />}
        {answer !== undefined && <Accepted stream={stream.name} answer={answer} />}
      </Stack>
    </form>
  );
}

function Refused({ error }: { error: unknown }) {
  const faults = (error as { faults?: readonly { pointer: string; detail: string }[] }).faults ?? [];
  return (
    <>
      <Failure error={error} what="It was not posted" />
      {faults.map(({ pointer, detail }) => (
        <Text key={pointer} size="sm" className="breakable">
          {pointer} {detail}
        </Text>
      ))}
    </>
  );
}

function Accepted({ stream, answer }: { stream: string; answer: Appended }) {
  const [at] = answer.offsets;
  return (
    <Alert color="green" variant="outline" role="status" title={`${answer.accepted} record is stored`}>
      {at !== undefined && (
        <To page={`/streams/${encodeURIComponent(stream)}?partition=${at.partition}&from_offset=${at.first}`}>{`partition ${at.partition}, offset ${at.first}`}</To>
      )}
      {(answer.warnings ?? []).map(({ pointer, detail }) => (
        <Text key={pointer} size="sm">
          {pointer}: {detail}
        </Text>
      ))}
    </Alert>
  );
}
