// Text of a problem: in the present language by its code and parameters, else as the server words it.
import { placeholders } from "../../locales/icu";

/** Values of a message from the parameters of a problem; null if one that the message needs is missing. */
export function messageValues(
  message: string,
  parameters: Record<string, unknown> | undefined,
  formatBytes: (bytes: number) => string,
): Record<string, string | number> | null {
  const values: Record<string, string | number> = {};
  for (const name of placeholders(message)) {
    // Sizes are `free_bytes` in the parameters, and `free` in the message.
    const bytes = parameters?.[`${name}_bytes`];
    const value = parameters?.[name];
    if (typeof bytes === "number") values[name] = formatBytes(bytes);
    else if (typeof value === "number" || typeof value === "string") values[name] = value;
    else if (Array.isArray(value)) values[name] = value.map(String).join(", ");
    else return null;
  }
  return values;
}
