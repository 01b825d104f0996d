// The pages that the matrix opens, each with what shows that it is complete. Add a page here when its route is added.
import type { Locator, Page } from "@playwright/test";

export interface MatrixPage {
  name: string;
  /** Path below `/console`. */
  path: string;
  /** Whether it is for visitors who are not signed in. */
  isPublic?: boolean;
  /** What is visible when the page has its content. */
  ready: (page: Page) => Locator;
}

export const pages: MatrixPage[] = [
  { name: "login", path: "/login", isPublic: true, ready: (page) => page.locator("form") },
  { name: "overview", path: "/", ready: (page) => page.getByRole("heading", { level: 1 }) },
  { name: "profile", path: "/profile", ready: (page) => page.getByRole("heading", { level: 1 }) },
  { name: "attention", path: "/attention", ready: (page) => page.getByRole("heading", { level: 1 }) },
  { name: "events", path: "/events", ready: (page) => page.getByRole("link", { name: "eb-1", exact: true }) },
  {
    name: "event search",
    path: "/events?view=events&application=quakes&class=quake&where=event.magnitude%20%3E%205.0&by=magnitude",
    ready: (page) => page.getByRole("row").nth(1),
  },
  { name: "event batch", path: "/events/eb-1", ready: (page) => page.getByRole("heading", { name: "Steps" }) },
  { name: "event", path: "/events/eb-1?event=e-1-0", ready: (page) => page.getByRole("heading", { name: "Steps" }) },
  { name: "notifications", path: "/notifications", ready: (page) => page.getByRole("link", { name: /^n-\d+-\d+$/ }) },
  { name: "notification", path: "/notifications/n-1-0", ready: (page) => page.getByRole("heading", { name: "Steps" }) },
  { name: "notification content", path: "/notifications/n-1-0?tab=content", ready: (page) => page.locator("iframe") },
  {
    name: "notification fields",
    path: "/notifications/n-1-0?tab=fields",
    ready: (page) => page.getByText("Fields of the event"),
  },
  {
    name: "notification batch",
    path: "/notifications/batches/nb-1",
    ready: (page) => page.getByRole("heading", { name: "Steps" }),
  },
  { name: "applications", path: "/applications", ready: (page) => page.getByText("quakes", { exact: true }) },
  { name: "application", path: "/applications/quakes", ready: (page) => page.getByRole("heading", { name: "Flow" }) },
  {
    name: "definition",
    path: "/applications/quakes?tab=definition",
    ready: (page) => page.getByText("Valid", { exact: true }),
  },
  {
    name: "versions",
    path: "/applications/quakes?tab=versions&version=1",
    ready: (page) => page.getByRole("heading", { name: "Version 1" }),
  },
  { name: "new application", path: "/applications/~new", ready: (page) => page.getByText("Valid", { exact: true }) },
  {
    name: "rules",
    path: "/rules?application=quakes&rule=near",
    ready: (page) => page.getByRole("heading", { name: "Index plan" }),
  },
  {
    name: "missed firings",
    path: "/rules?view=missed",
    ready: (page) => page.getByRole("heading", { name: "No missed batches" }),
  },
  {
    name: "explain",
    path: "/explain?event=e-1-0&subscription=s-1",
    ready: (page) => page.getByRole("heading", { level: 2 }),
  },
  { name: "explain, empty", path: "/explain", ready: (page) => page.getByRole("heading", { level: 2 }) },
  {
    name: "templates",
    path: "/templates?application=quakes&event=e-1-0",
    ready: (page) => page.getByRole("heading", { name: /Subject/ }),
  },
];
