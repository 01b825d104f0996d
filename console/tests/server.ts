// The server of the tests: the real binary on a fresh folder with seeded data, one for each worker; and the page
// fixture, which fails a test on console errors, failed requests of own files, and violations of the policy.
import { type ChildProcess, execFile, spawn } from "node:child_process";
import {
  copyFileSync, createWriteStream, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync,
} from "node:fs";
import { homedir, tmpdir } from "node:os";
import { extname, join, resolve } from "node:path";
import { promisify } from "node:util";

import { type Page, type TestInfo, expect, test as base } from "@playwright/test";

const repository = resolve(import.meta.dirname, "../..");
const run = promisify(execFile);

/** The administrator that the seed creates. */
export const admin = { name: "ada", password: "correct horse battery staple" };
/** A user who may read, and nothing else. */
export const reader = { name: "rob", password: "another long passphrase" };

export interface Server {
  /** Address without a path, such as `http://127.0.0.1:41234`. */
  url: string;
  /** The first key, of an administrator. */
  key: string;
  /** The data folder. */
  folder: string;
  /** File with the log. */
  log: string;
  /** Runs a command of `tocsin` against the server; returns its output. */
  command(...arguments_: string[]): Promise<string>;
  /** Sends a request with the first key; returns the JSON of a successful response. */
  api(method: string, path: string, body?: unknown): Promise<unknown>;
}

/** The binary under test: `TOCSIN_BINARY`, or the last debug build. */
function binary(): string {
  const target = process.env.CARGO_TARGET_DIR ?? join(homedir(), ".cache/tocsin/target");
  const path = process.env.TOCSIN_BINARY ?? join(target, "debug/tocsin");
  if (!existsSync(path)) throw new Error(`${path} is missing: build it, or set TOCSIN_BINARY`);
  return path;
}

/** Starts the binary and waits for a line of its output; returns the first group of the pattern. */
async function start(arguments_: string[], environment: NodeJS.ProcessEnv, log: string, ready: RegExp) {
  const program = binary();
  const child = spawn(program, arguments_, { env: environment, stdio: ["ignore", "pipe", "pipe"] });
  const file = createWriteStream(log, { flags: "a" });
  child.stderr.pipe(file);
  const found = await new Promise<string>((done, fail) => {
    let text = "";
    child.stdout.on("data", (bytes: Buffer) => {
      file.write(bytes);
      text += bytes.toString();
      const match = ready.exec(text);
      if (match?.[1] !== undefined) done(match[1]);
    });
    child.once("error", fail);
    const name = `tocsin ${arguments_.join(" ")}`;
    child.once("exit", (code) => fail(new Error(`${name} ended with ${code}; its log is ${log}`)));
  });
  return { child, found };
}

async function stop(child: ChildProcess) {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const ended = new Promise((done) => child.once("exit", done));
  child.kill("SIGKILL");
  await ended;
}

/** Starts a mailbox and a server without data. */
async function launch(name: string, settings: Record<string, string>) {
  const root = mkdtempSync(join(tmpdir(), "tocsin-console-"));
  const folder = join(root, "data");
  const log = join(root, "server.log");
  // The environment of the caller must not configure the server.
  const inherited = Object.entries(process.env).filter(([key]) => !key.startsWith("TOCSIN_"));
  const environment: NodeJS.ProcessEnv = { ...Object.fromEntries(inherited), HOME: root, TOCSIN_DATA_FOLDER: folder };
  const mailbox = await start(
    ["mailbox", "--smtp", "127.0.0.1:0", "--page", "127.0.0.1:0"],
    environment,
    join(root, "mailbox.log"),
    /SMTP at [^ ]*:(\d+),/,
  );
  Object.assign(environment, settings, { SMTP_PORT: mailbox.found });
  const server = await start(["serve", "--listen", "127.0.0.1:0"], environment, log, /listens at (http:\/\/\S+)/);
  const url = server.found;
  const key = readFileSync(join(folder, "admin.key"), "utf8").trim();
  const client = { ...environment, TOCSIN_SERVER: url, TOCSIN_KEY: key };
  const made: Server = {
    url, key, folder, log,
    async command(...arguments_) {
      const { stdout } = await run(binary(), arguments_, { env: client, cwd: repository, maxBuffer: 1 << 26 });
      return stdout;
    },
    async api(method, path, body) {
      const headers: Record<string, string> = { authorization: `Bearer ${key}` };
      if (body !== undefined) headers["content-type"] = "application/json";
      const content = body === undefined ? null : JSON.stringify(body);
      const response = await fetch(url + path, { method, headers, body: content });
      const text = await response.text();
      if (!response.ok) throw new Error(`${name}: ${method} ${path}: ${response.status} ${text}`);
      return text === "" ? null : JSON.parse(text);
    },
  };
  const close = async () => {
    await Promise.all([stop(server.child), stop(mailbox.child)]);
    rmSync(root, { recursive: true, force: true });
  };
  return { server: made, close };
}

/** An application of which devices keep replicas. */
const FIELDWORK = `
application: fieldwork
collections:
  customers:
    fields: { name: { type: string, required: true }, region: string, owner: string, visits: integer }
    partition: [ { match: { owner: subscriber.id } } ]
`;

/** Writes the data that pages show: an application with events and mails, an exchange, sync, entries, users. */
async function seed(server: Server) {
  const quakes = "examples/quakes";
  await server.command("apply", `${quakes}/application.yaml`, "--yes");
  await server.command("import", "subscribers", `${quakes}/samples/subscribers.ndjson`);
  await server.command("import", "subscriptions", `${quakes}/samples/subscriptions.ndjson`);
  await server.command(
    "publish", "quakes", "quake", `${quakes}/usgs-earthquakes-week.geojson`, "--items", "features",
    "--map", "id=id,magnitude=properties.mag,place=properties.place,at=properties.time,url=properties.url",
    "--map", "longitude=geometry.coordinates.0,latitude=geometry.coordinates.1,depth_km=geometry.coordinates.2",
  );
  const fieldwork = join(server.folder, "..", "fieldwork.yaml");
  writeFileSync(fieldwork, FIELDWORK);
  await server.command("apply", fieldwork, "--yes");
  for (let at = 0; at < 30; at++) {
    const row = { name: `Customer ${at}`, region: at % 2 ? "north" : "south", owner: "ada", visits: at };
    await server.api("PUT", `/v1/applications/fieldwork/collections/customers/rows/c-${at}`, row);
  }
  await server.command("exchange", "apply", "examples/confirmation/exchange.yaml", "--yes");
  for (const order of [1, 2, 3]) {
    const message = { type: "order", order, amount: order * 100 };
    await server.api("POST", "/v1/exchanges/confirmation/receive/orders", message);
  }
  const entries = Array.from({ length: 200 }, (_, at) => at + 1).map((at) =>
    server.api("POST", "/scim/v2/Users", {
      schemas: ["urn:ietf:params:scim:schemas:core:2.0:User"],
      userName: `person-${at}`,
      name: { givenName: "Person", familyName: `Number ${at}` },
    }),
  );
  await Promise.all(entries);
  await server.api("POST", "/v1/users", { ...admin, display_name: "Ada Lovelace", roles: ["admin"] });
  await server.api("POST", "/v1/users", { ...reader, display_name: "Rob Reader", roles: ["reader"] });
}

/** Signs in by the API, so that a test begins behind the login. */
export async function signIn(page: Page, server: Server, user: { name: string; password: string } = admin) {
  const response = await page.context().request.post(`${server.url}/v1/session`, {
    data: { name: user.name, password: user.password },
    headers: { origin: server.url },
  });
  expect(response.status(), await response.text()).toBe(200);
}

/** Problems that a browser reports about a page. */
export class Problems {
  readonly found: string[] = [];
  private readonly allowed: RegExp[] = [
    /Failed to load resource.*\b401\b.*\/v1\/session/,
    // The fixture itself runs a script in every frame; the sandbox of previews permits none.
    /Blocked script execution in '[^']*\/v1\/preview/,
  ];

  /** Permits problems that a test causes, such as an injected failure. */
  allow(...patterns: RegExp[]) {
    this.allowed.push(...patterns);
  }

  add(text: string) {
    if (!this.allowed.some((pattern) => pattern.test(text))) this.found.push(text);
  }

  watch(page: Page) {
    page.on("console", (message) => {
      if (["error", "warning"].includes(message.type())) this.add(`${message.text()} ${message.location().url}`);
    });
    page.on("pageerror", (error) => this.add(`exception: ${error.message}`));
    page.on("requestfailed", (request) => {
      const reason = request.failure()?.errorText ?? "";
      // A view that closes aborts its own requests.
      if (!reason.includes("ERR_ABORTED")) this.add(`request failed: ${request.url()} ${reason}`);
    });
    page.on("response", (response) => {
      const isOwn = response.url().includes("/console/");
      if (isOwn && response.status() >= 400) this.add(`${response.status()} ${response.url()}`);
    });
  }
}

interface Fixtures {
  problems: Problems;
}

interface WorkerFixtures {
  server: Server;
}

/** Serves the files of a folder below /console/ in place of those in the binary, with the headers of the binary. */
async function serveFiles(page: Page, server: Server, folder: string) {
  const response = await page.context().request.get(`${server.url}/console/`);
  const policy = response.headers()["content-security-policy"] ?? "";
  await page.context().route(`${server.url}/console/**`, (route) => {
    const path = new URL(route.request().url()).pathname.slice("/console/".length);
    const file = join(folder, extname(path) === "" ? "index.html" : path);
    return existsSync(file)
      ? route.fulfill({ path: file, headers: { "content-security-policy": policy } })
      : route.fulfill({ status: 404 });
  });
}

/** Copies the log of the server beside the trace of a failed test. */
function keepLog(server: Server, info: TestInfo) {
  if (info.status === info.expectedStatus || !existsSync(server.log)) return;
  mkdirSync(info.outputDir, { recursive: true });
  copyFileSync(server.log, join(info.outputDir, "server.log"));
}

export const test = base.extend<Fixtures, WorkerFixtures>({
  server: [
    async ({}, use, info) => {
      const { server, close } = await launch(`worker ${info.workerIndex}`, {
        TOCSIN_LDAP_SCIM: "true",
        TOCSIN_LDAP_SUFFIX: "dc=example,dc=org",
        TOCSIN_HTTP_REQUESTS_PER_ADDRESS_MAX: "0",
        TOCSIN_LOG_LEVEL: "info",
      });
      try {
        await seed(server);
        await use(server);
      } finally {
        await close();
      }
    },
    { scope: "worker", timeout: 120_000 },
  ],
  baseURL: async ({ server }, use) => use(server.url),
  problems: async ({}, use) => use(new Problems()),
  page: async ({ page, problems, server }, use, info) => {
    problems.watch(page);
    await page.addInitScript(() => {
      document.addEventListener("securitypolicyviolation", (event) => {
        const { violatedDirective, blockedURI, sourceFile, lineNumber } = event;
        console.error(`policy violated: ${violatedDirective} ${blockedURI} ${sourceFile}:${lineNumber}`);
      });
    });
    const folder = process.env.TOCSIN_TEST_CONSOLE;
    if (folder !== undefined) await serveFiles(page, server, folder);
    await use(page);
    keepLog(server, info);
    expect(problems.found, "what the browser reports").toEqual([]);
  },
});

export { expect };

/** A server of its own, without data: for the first start, failures of the server, and tests that change much. */
export const freshServer = launch;
