// Attention: the problems that need an operator, as a work list.
import type { Page as ListPage } from "../../api/client";
import { useRead } from "../../api/query";
import { Segmented } from "../../components/controls";
import { Empty, Loaded } from "../../components/states";
import { Time } from "../../components/values";
import { T, useT } from "../../locales";
import { Page } from "../../shell/page-frame";
import { AttentionList } from "../overview/attention-list";
import { useAttention } from "../overview/queries";
import { attentionPage } from "./route";
import "../overview/overview.css";

export default function Attention() {
  const t = useT();
  const { urgency } = attentionPage.useSearch();
  const setSearch = attentionPage.useSetSearch();
  const attention = useAttention();
  const items = attention.data?.items ?? [];
  const count = (wanted: string) => items.filter((item) => wanted === "all" || item.urgency === wanted).length;
  return (
    <Page
      title={t("common.nav.attention")}
      about={t("attention.about")}
      command={{ tocsin: "attention", curl: { method: "GET", path: "/v1/attention" } }}
    >
      {items.length > 0 && (
        <div className="toolbar">
          <Segmented
            label={t("attention.filter.label")}
            value={urgency ?? "all"}
            options={(["all", "now", "soon", "note"] as const).map((value) => ({
              value,
              text: `${value === "all" ? t("attention.filter.all") : t(`common.state.${value}`)} ${count(value)}`,
            }))}
            onValue={(value) => setSearch({ urgency: value === "all" ? undefined : value })}
          />
        </div>
      )}
      <div className="panel">
        <Loaded query={attention} empty={(data) => (data.items.length === 0 ? <Calm /> : null)}>
          {(data) => {
            const shown = data.items.filter((item) => urgency === undefined || item.urgency === urgency);
            return shown.length === 0 ? (
              <p className="panel-body muted">{t("attention.none")}</p>
            ) : (
              <AttentionList items={shown} detailed />
            );
          }}
        </Loaded>
      </div>
    </Page>
  );
}

function Calm() {
  const t = useT();
  const newest = useRead<ListPage<{ accepted_at: string }>>("/v1/event-batches", { query: { limit: 1 } });
  const last = newest.data?.items[0];
  return (
    <Empty
      icon="success"
      title={t("attention.empty.title")}
      text={
        <>
          {t("attention.empty.text")}{" "}
          {last !== undefined && <T k="attention.empty.last" values={{ time: <Time value={last.accepted_at} /> }} />}
        </>
      }
      command="tocsin attention"
    />
  );
}
