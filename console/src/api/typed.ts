// Client with the paths and types of `docs/reference/openapi.json`. Failures are thrown as `ProblemError`.
import createClient from "openapi-fetch";
import { send } from "./client";
import type { paths } from "./schema";

export const client = createClient<paths>({ baseUrl: location.origin, fetch: send, credentials: "same-origin" });
