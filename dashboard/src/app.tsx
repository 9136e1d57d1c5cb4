// Who is signed in, and which page they are at.
import { ActionIcon, Anchor, Button, Loader, Text, useComputedColorScheme, useMantineColorScheme } from "@mantine/core";
import { Suspense, createElement, type ComponentType } from "react";
import { Link, Route, Switch, useLocation } from "wouter";

import { signOut, type Session } from "./api";
import { Boundary } from "./boundary";
import { chunk } from "./chunk";
import { TABS, pageOf, type Tab } from "./pages/job/frame";
import { Overview } from "./pages/overview";
import { SignIn } from "./pages/sign-in";
import { Failure, Page, To } from "./parts";
import { SESSION, queries, useSession } from "./queries";
import { ZoneSwitch } from "./time";

const StreamsPage = chunk(() => import("./pages/streams"));
const StreamPage = chunk(() => import("./pages/stream"));
const InstancesPage = chunk(() => import("./pages/instances"));
const KeysPage = chunk(() => import("./pages/keys"));
const TryPage = chunk(() => import("./pages/try"));
const JOB_PAGES: Record<Tab, ComponentType<{ job: string }>> = {
  status: chunk(() => import("./pages/job/status")),
  time: chunk(() => import("./pages/job/time")),
  why: chunk(() => import("./pages/job/why")),
  dropped: chunk(() => import("./pages/job/dropped")),
  state: chunk(() => import("./pages/job/state")),
  assignment: chunk(() => import("./pages/job/assignment")),
  try: chunk(() => import("./pages/job/try")),
};

/** The pages that the top leads to, and where one is that is none of them. */
const TOP: [name: string, page: string, under: RegExp][] = [
  ["Overview", "/", /^\/(jobs\/.*)?$/],
  ["Streams", "/streams", /^\/streams/],
  ["Instances", "/instances", /^\/instances/],
  ["Try", "/try", /^\/try/],
  ["Keys", "/keys", /^\/keys/],
];

export function App() {
  const { data: session, error, isPending } = useSession();
  const [place] = useLocation();
  if (isPending) return <Loader m="xl" role="progressbar" aria-label="loading" />;
  if (session === undefined) return <Failure error={error} what="The session" />;
  if (session === null) return <SignIn />;
  return (
    <>
      <a className="skip" href="#main">
        to the page
      </a>
      <Top session={session} />
      <main id="main" tabIndex={-1}>
        <Boundary place={place}>
          <Suspense fallback={<Loader role="progressbar" aria-label="loading" />}>
            <Switch>
              <Route path="/" component={Overview} />
              <Route path="/streams" component={StreamsPage} />
              <Route path="/streams/:stream">{({ stream }) => <StreamPage key={stream} stream={decodeURIComponent(stream)} />}</Route>
              <Route path="/instances" component={InstancesPage} />
              <Route path="/keys" component={KeysPage} />
              <Route path="/try" component={TryPage} />
              {TABS.map((tab) => (
                <Route key={tab} path={pageOf(":job", tab).replace("%3A", ":")}>
                  {({ job }: { job: string }) => createElement(JOB_PAGES[tab], { key: job, job: decodeURIComponent(job) })}
                </Route>
              ))}
              <Route>
                <Page title="Nothing is here">
                  <To page="/">The overview</To>
                </Page>
              </Route>
            </Switch>
          </Suspense>
        </Boundary>
      </main>
    </>
  );
}

function Top({ session }: { session: Session }) {
  const [place] = useLocation();
  const leave = async () => {
    await signOut();
    queries.setQueryData(SESSION, null); // first: then nothing is shown that would ask again
    queries.removeQueries({ predicate: ({ queryKey }) => queryKey[0] !== SESSION[0] });
  };
  return (
    <header className="top">
      <span className="brand">Millrace</span>
      <nav aria-label="Pages">
        {TOP.map(([name, page, under]) => (
          <Link key={page} href={page} aria-current={under.test(place) ? "page" : undefined}>
            {name}
          </Link>
        ))}
        <Anchor href="/docs" c="inherit">
          API
        </Anchor>
      </nav>
      <ZoneSwitch />
      <SchemeSwitch />
      <Text size="sm" title={`${session.name} (${session.role})`}>
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
  const choose = () => {
    const systems = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    setColorScheme(other === systems ? "auto" : other); // who chooses what the system has follows it again
  };
  return (
    <ActionIcon variant="default" aria-label={`show it ${other}`} onClick={choose}>
      <span aria-hidden>{scheme === "dark" ? "☀" : "☾"}</span>
    </ActionIcon>
  );
}
