// Who is signed in, and which page they are at.
import { ActionIcon, Anchor, Button, Loader, Text, useComputedColorScheme, useMantineColorScheme } from "@mantine/core";
import { Suspense, lazy } from "react";
import { Link, Route, Switch, useLocation } from "wouter";

import { signOut, type Session } from "./api";
import { Overview } from "./pages/overview";
import { SignIn } from "./pages/sign-in";
import { Failure, Page, To } from "./parts";
import { SESSION, queries, useSession } from "./queries";
import { ZoneSwitch } from "./time";

const JobPage = lazy(() => import("./pages/job"));
const StreamsPage = lazy(() => import("./pages/streams"));
const StreamPage = lazy(() => import("./pages/stream"));

export function App() {
  const { data: session, error, isPending } = useSession();
  if (isPending) return <Loader m="xl" aria-label="loading" />;
  if (session === undefined) return <Failure error={error} what="The session" />;
  if (session === null) return <SignIn />;
  return (
    <>
      <a className="skip" href="#main">
        to the page
      </a>
      <Top session={session} />
      <main id="main" tabIndex={-1}>
        <Suspense fallback={<Loader aria-label="loading" />}>
          <Switch>
            <Route path="/" component={Overview} />
            <Route path="/streams" component={StreamsPage} />
            <Route path="/streams/:stream">{({ stream }) => <StreamPage key={stream} stream={decodeURIComponent(stream)} />}</Route>
            <Route path="/jobs/:job">{({ job }) => <JobPage key={job} job={decodeURIComponent(job)} />}</Route>
            <Route>
              <Page title="Nothing is here">
                <To page="/">The overview</To>
              </Page>
            </Route>
          </Switch>
        </Suspense>
      </main>
    </>
  );
}

function Top({ session }: { session: Session }) {
  const [place] = useLocation();
  const current = (page: string, is: boolean) => (
    <Link href={page} aria-current={is ? "page" : undefined}>
      {page === "/" ? "Overview" : "Streams"}
    </Link>
  );
  const leave = async () => {
    await signOut();
    queries.setQueryData(SESSION, null); // first: then nothing is shown that would ask again
    queries.removeQueries({ predicate: ({ queryKey }) => queryKey[0] !== SESSION[0] });
  };
  return (
    <header className="top">
      <span className="brand">Millrace</span>
      <nav aria-label="Pages">
        {current("/", place === "/" || place.startsWith("/jobs"))}
        {current("/streams", place.startsWith("/streams"))}
        <Anchor href="/docs" c="inherit">
          API
        </Anchor>
      </nav>
      <ZoneSwitch />
      <SchemeSwitch />
      <Text size="sm">
        {session.name} ({session.role})
      </Text>
      {!session.is_open && (
        <Button size="compact-sm" variant="default" onClick={leave}>
          sign out
        </Button>
      )}
    </header>
  );
}

function SchemeSwitch() {
  const { setColorScheme } = useMantineColorScheme();
  const scheme = useComputedColorScheme("light");
  const other = scheme === "dark" ? "light" : "dark";
  return (
    <ActionIcon variant="default" aria-label={`show it ${other}`} onClick={() => setColorScheme(other)}>
      <span aria-hidden>{scheme === "dark" ? "☀" : "☾"}</span>
    </ActionIcon>
  );
}
