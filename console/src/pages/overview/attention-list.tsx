// Problems that need attention, as a list; the pages Overview and Attention share it.
import type { ReactNode } from "react";
import { StateBadge } from "../../components/badge";
import { Icon } from "../../components/icon";
import { Link } from "../../components/link";
import { objectPath } from "../../ids";
import { formatBytes } from "../../format";
import { hasMessage, messageOf, presentLanguage, T, useT } from "../../locales";
import { targetOf } from "./attention-targets";
import { messageValues } from "./attention-text";
import type { AttentionItem } from "./queries";

export function AttentionList({
  items,
  more = 0,
  detailed = false,
}: {
  items: readonly AttentionItem[];
  more?: number;
  detailed?: boolean;
}) {
  const t = useT();
  return (
    <>
      <ul className="attention-list">
        {items.map((item, index) => (
          <AttentionRow key={`${item.what}-${index}`} item={item} detailed={detailed} />
        ))}
      </ul>
      {more > 0 && (
        <Link to="/attention" className="attention-more">
          {t("overview.attention.more", { count: more })}
        </Link>
      )}
    </>
  );
}

export function problemTitle(t: ReturnType<typeof useT>, what: string): string {
  const key = `overview.what.${what}`;
  return hasMessage(key) ? t(key) : what.replaceAll("-", " ");
}

/** Text in the present language; null if the console has none for this problem. */
function problemText(t: ReturnType<typeof useT>, item: AttentionItem): string | null {
  const key = `overview.text.${item.what}`;
  if (!hasMessage(key)) return null;
  const locale = presentLanguage();
  const values = messageValues(messageOf(key), item.parameters, (bytes) => formatBytes(bytes, locale));
  return values === null ? null : t(key, values);
}

function AttentionRow({ item, detailed }: { item: AttentionItem; detailed: boolean }) {
  const t = useT();
  const target = targetOf(item.what);
  const path = (item.object == null ? null : objectPath(item.object)) ?? target?.to ?? null;
  const url = path === null ? null : new URL(path, location.origin);
  // On its own page a problem is a section; on the overview it is in one.
  const Title = detailed ? "h2" : "h3";
  return (
    <li className={`attention-row attention-${item.urgency}`}>
      <div className="attention-state">
        <StateBadge state={item.urgency} />
      </div>
      <div className="attention-text">
        <Title>{problemTitle(t, item.what)}</Title>
        <p>{problemText(t, item) ?? withCode(item.text)}</p>
        {detailed && item.cause != null && (
          <p className="muted">
            <T k="overview.attention.cause" values={{ cause: withCode(item.cause) }} />
          </p>
        )}
        <p className="attention-advice">
          <Icon name="arrow-right" size={12} /> <span>{withCode(item.advice)}</span>
        </p>
      </div>
      {url !== null && (
        <Link to={decodeURI(url.pathname)} search={Object.fromEntries(url.searchParams)} className="button">
          {target === null ? t("overview.attention.open") : t(target.text)}
        </Link>
      )}
    </li>
  );
}

/** Text of the server, with its `commands` as code. */
export function withCode(text: string): ReactNode {
  return text.split(/`([^`]+)`/).map((part, index) => (index % 2 === 1 ? <code key={index}>{part}</code> : part));
}
