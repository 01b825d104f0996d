// Texts of the large components (journey, verdict, diff, JSON, editor), loaded with the pages that use them.
import { loadMessages } from "../locales";
import "./parts.css";

/** Loads a page with the texts of these components. */
export async function withParts<Module>(load: () => Promise<Module>): Promise<Module> {
  const [module] = await Promise.all([load(), loadMessages("parts")]);
  return module;
}
