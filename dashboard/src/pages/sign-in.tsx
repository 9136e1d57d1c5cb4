import { Button, PasswordInput, Stack, Text, Title } from "@mantine/core";
import { ApiError } from "@millrace/client";
import { useState, type FormEvent } from "react";

import { signIn } from "../api";
import { SESSION, queries } from "../queries";

export function SignIn() {
  const [key, setKey] = useState("");
  const [refusal, setRefusal] = useState<string | null>(null);
  const submit = async (event: FormEvent) => {
    event.preventDefault();
    try {
      queries.setQueryData(SESSION, await signIn({ key: key.trim() }));
    } catch (error) {
      setRefusal(error instanceof ApiError ? (error.problem.detail ?? error.message) : "the service did not answer");
    }
  };
  return (
    <main className="sign-in">
      <form onSubmit={submit}>
        <Stack>
          <Title order={1} size="h2">
            Millrace
          </Title>
          <PasswordInput
            label="API key"
            description="`millrace up` keeps the admin's in <data-dir>/admin-key; `millrace token create` makes others."
            required
            autoFocus
            autoComplete="off"
            value={key}
            onChange={(event) => setKey(event.currentTarget.value)}
            error={refusal}
          />
          <Button type="submit" disabled={key.trim() === ""}>
            sign in
          </Button>
          <Text size="sm" c="dimmed">
            The key goes to this service alone and is not kept here: the browser gets a session, which ends by itself.
          </Text>
        </Stack>
      </form>
    </main>
  );
}
