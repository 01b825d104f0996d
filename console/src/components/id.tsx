// An id: opens its page, and copies with its button.
import { idPath } from "../ids";
import { useT } from "../locales";
import { copy } from "../shell/copy";
import { Icon } from "./icon";
import { Link } from "./link";

export { idPath, objectPath } from "../ids";

export function Id({
  value,
  to,
  copies = true,
}: {
  value: string | null | undefined;
  to?: string | null;
  copies?: boolean;
}) {
  const t = useT();
  if (value === null || value === undefined || value === "") return <span className="muted">–</span>;
  const path = to === undefined ? idPath(value) : to;
  const url = path === null ? null : new URL(path, location.origin);
  return (
    <span className="id">
      {url === null ? (
        <span className="mono id-text">{value}</span>
      ) : (
        <Link className="mono id-text" to={decodeURI(url.pathname)} search={Object.fromEntries(url.searchParams)}>
          {value}
        </Link>
      )}
      {copies && (
        <button
          type="button"
          className="id-copy"
          aria-label={t("common.copyId", { id: value })}
          onClick={(event) => {
            event.stopPropagation();
            copy(value);
          }}
        >
          <Icon name="copy" size={12} />
        </button>
      )}
    </span>
  );
}
