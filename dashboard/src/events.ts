// One stream of events for all that a tab shows: `GET /v1/events`, whose topics are what is mounted.
//
// Browsers allow six connections to a host, for all tabs together: a tab that nobody looks at gives its own back, and
// of those that are seen a few have one. Whoever has none polls.

/** How often what did not change is said to be as it was, and polled for where it does not come. */
export const LIVE_MS = 2_000;
/** Of the connections of a browser: the others are for requests, and for tails. */
const STREAMS = 3;
const MOST_TOPICS = 100;
/** A page that is left takes its topics along before the next one has named its own. */
const NEW_TOPIC_MS = 20;
const FEWER_TOPICS_MS = 500;
const COME_BACK_MS = 10_000;
/** The service is heard of every 15 s: then the connection is gone, and nobody said so. */
const SILENT_MS = 40_000;

/** What a topic's GET answers now; `problem` where it is refused. */
export interface Came {
  readonly topic: string;
  readonly body?: unknown;
  readonly problem?: unknown;
}

export interface Listener {
  /** A topic's answer, or why there is none. */
  came(came: Came): void;
  /** These topics are what they were. */
  stayed(topics: Iterable<string>): void;
  /** The service has ended the stream. */
  ended(): void;
}

export class Events {
  readonly #listener: Listener;
  readonly #wanted = new Map<string, number>();
  readonly #live = new Set<string>();
  readonly #watchers = new Set<() => void>();
  #source: EventSource | undefined;
  #asked = "";
  #giveBack: (() => void) | undefined;
  #isAsking = false;
  #heardAt = 0;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #due = Infinity;

  constructor(listener: Listener) {
    this.#listener = listener;
    document.addEventListener("visibilitychange", () => this.#settleIn(0));
    addEventListener("pagehide", () => this.#close());
    addEventListener("pageshow", () => this.#settleIn(0));
    setInterval(() => this.#lookAround(), LIVE_MS);
  }

  /** Follow a topic until what is returned is called. */
  follow(topic: string): () => void {
    const before = this.#wanted.get(topic) ?? 0;
    this.#wanted.set(topic, before + 1);
    if (before === 0) this.#settleIn(NEW_TOPIC_MS);
    return () => {
      const left = this.#wanted.get(topic)! - 1;
      if (left > 0) {
        this.#wanted.set(topic, left);
      } else {
        this.#wanted.delete(topic);
        this.#settleIn(FEWER_TOPICS_MS);
      }
    };
  }

  /** Whether a topic's answers come by themselves. */
  isLive(topic: string): boolean {
    return this.#live.has(topic);
  }

  readonly subscribe = (watcher: () => void): (() => void) => {
    this.#watchers.add(watcher);
    return () => this.#watchers.delete(watcher);
  };

  /** See to it, at the latest after that time, that the stream is what is wanted. */
  #settleIn(ms: number): void {
    const due = performance.now() + ms;
    if (due >= this.#due) return;
    clearTimeout(this.#timer);
    this.#due = due;
    this.#timer = setTimeout(() => {
      this.#due = Infinity;
      void this.#settle();
    }, ms);
  }

  async #settle(): Promise<void> {
    if (!document.hidden && this.#wanted.size > 0 && !(await this.#hasConnection())) return;
    const topics = [...this.#wanted.keys()].slice(0, MOST_TOPICS).sort(); // as they are by now
    const asked = topics.map(encodeURIComponent).join(",");
    const isOpen = this.#source !== undefined && this.#source.readyState !== EventSource.CLOSED;
    if (document.hidden || topics.length === 0) this.#close();
    else if (asked !== this.#asked || !isOpen) this.#open(asked, new Set(topics));
  }

  #open(asked: string, topics: Set<string>): void {
    this.#source?.close();
    this.#asked = asked;
    this.#lose((topic) => !topics.has(topic));
    const source = (this.#source = new EventSource(`/v1/events?topics=${asked}`));
    this.#heardAt = performance.now();
    source.onmessage = ({ data }: MessageEvent<string>) => {
      this.#heardAt = performance.now();
      const came = JSON.parse(data) as Came;
      if (!topics.has(came.topic)) return;
      this.#listener.came(came);
      if (!this.#live.has(came.topic)) {
        this.#live.add(came.topic);
        this.#tell();
      }
    };
    source.addEventListener("heartbeat", () => {
      this.#heardAt = performance.now();
    });
    source.addEventListener("error", (event) => {
      if (source !== this.#source) return;
      this.#lose(() => true);
      if (event instanceof MessageEvent) {
        source.close(); // the service says why; the browser would come back for ever
        this.#listener.ended();
      }
      if (source.readyState === EventSource.CLOSED) this.#settleIn(COME_BACK_MS);
    });
  }

  #close(): void {
    this.#source?.close();
    this.#source = undefined;
    this.#asked = "";
    this.#lose(() => true);
    this.#giveBack?.();
    this.#giveBack = undefined;
  }

  /** These do not come any more. */
  #lose(isLost: (topic: string) => boolean): void {
    const lost = [...this.#live].filter(isLost);
    for (const topic of lost) this.#live.delete(topic);
    if (lost.length > 0) this.#tell();
  }

  #tell(): void {
    for (const watcher of this.#watchers) watcher();
  }

  #lookAround(): void {
    if (this.#source === undefined) return;
    if (performance.now() - this.#heardAt > SILENT_MS) {
      this.#source.close();
      this.#lose(() => true);
      this.#settleIn(0);
    } else if (this.#live.size > 0) {
      this.#listener.stayed(this.#live);
    }
  }

  /** Whether this tab has one of the browser's connections for events: a lock, which ends with the tab. Else it asks
   * again in a while. */
  async #hasConnection(): Promise<boolean> {
    if (this.#giveBack !== undefined) return true;
    if (!("locks" in navigator)) return true; // nor has a page that came without TLS, but from this machine
    if (this.#isAsking) return false; // who is about to have one looks at what is wanted then
    this.#isAsking = true;
    try {
      for (let place = 0; place < STREAMS; place++) {
        if (await this.#take(`millrace-events-${place}`)) return true;
      }
    } finally {
      this.#isAsking = false;
    }
    this.#settleIn(COME_BACK_MS);
    return false;
  }

  #take(name: string): Promise<boolean> {
    return new Promise((resolve) => {
      void navigator.locks.request(name, { ifAvailable: true }, (lock) => {
        resolve(lock !== null);
        return lock === null ? undefined : new Promise<void>((release) => (this.#giveBack = release));
      });
    });
  }
}
