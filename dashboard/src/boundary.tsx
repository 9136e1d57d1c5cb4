// A page that throws: what happened, and the way on. The frame around it stays.
import { Alert, Button, Code, CopyButton, Group, Stack, Text } from "@mantine/core";
import { Component, type ErrorInfo, type ReactNode } from "react";

interface Props {
  /** Where the page is: another one begins anew. */
  readonly place: string;
  readonly children: ReactNode;
}

interface State {
  readonly broken: { readonly error: unknown; readonly at: Date } | null;
  readonly within: string;
}

export class Boundary extends Component<Props, State> {
  override state: State = { broken: null, within: "" };

  static getDerivedStateFromError(error: unknown): Partial<State> {
    return { broken: { error, at: new Date() } };
  }

  override componentDidCatch(_: unknown, { componentStack }: ErrorInfo) {
    this.setState({ within: componentStack ?? "" });
  }

  override componentDidUpdate({ place }: Props) {
    if (place !== this.props.place && this.state.broken !== null) this.setState({ broken: null, within: "" });
  }

  override render() {
    const { broken, within } = this.state;
    return broken === null ? this.props.children : <Broken {...broken} within={within} place={this.props.place} />;
  }
}

function Broken({ error, at, within, place }: { error: unknown; at: Date; within: string; place: string }) {
  const said = error instanceof Error ? `${error.name}: ${error.message}` : String(error);
  const stack = error instanceof Error ? (error.stack ?? "") : "";
  const report = [`/admin${place}${location.search}`, at.toISOString(), navigator.userAgent, stack.includes(said) ? stack : `${said}\n${stack}`, within.trim()];
  const text = report.filter((each) => each !== "").join("\n");
  return (
    <Alert color="red" variant="outline" role="alert" title="This page broke">
      <Stack gap="xs" align="flex-start">
        <Text className="breakable">{said}</Text>
        <Text size="sm">
          The fault is the page's: the service and its jobs go on, and the other pages are there. Reload it; where that does not help, report what
          is below, and ask the API meanwhile.
        </Text>
        <Group gap="xs">
          <Button size="compact-md" onClick={() => location.reload()}>
            reload
          </Button>
          <CopyButton value={text}>
            {({ copied, copy }) => (
              <Button size="compact-md" variant="default" onClick={copy}>
                {copied ? "copied" : "copy the error"}
              </Button>
            )}
          </CopyButton>
        </Group>
        <Code block tabIndex={0} className="curl report">
          {text}
        </Code>
      </Stack>
    </Alert>
  );
}
