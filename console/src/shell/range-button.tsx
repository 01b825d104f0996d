// Choice of the time range of all pages, and of the time zone in which times are shown.
import { lazy, Suspense, useState } from "react";
import { Icon } from "../components/icon";
import { MenuButton } from "../components/menu";
import { formatTime } from "../format";
import { presentLanguage, useT } from "../locales";
import { changeSettings, useSettings, useTimeZone } from "../settings";
import { ranges, useRange, useSetRange, type Range } from "./range";

const RangeDialog = lazy(() => import("./range-dialog"));

export function RangeButton() {
  const t = useT();
  const range = useRange();
  const setRange = useSetRange();
  const settings = useSettings();
  const [absolute, setAbsolute] = useState(false);
  const zones = [...new Set(["browser", "UTC", settings.timeZone])];
  const text = useRangeText(range);
  return (
    <>
      <MenuButton
        label={t("common.range.label", { range: text })}
        className="tool range-button"
        groups={[
          {
            title: t("common.range.title"),
            entries: [
              ...ranges.map((key) => ({
                id: key,
                text: t(`common.range.${key}`),
                checked: range.key === key,
                run: () => setRange({ range: key }),
              })),
              {
                id: "absolute",
                text: t("common.range.absolute"),
                checked: range.key === "absolute",
                run: () => setAbsolute(true),
              },
            ],
          },
          {
            title: t("common.range.zone"),
            entries: zones.map((zone) => ({
              id: `zone-${zone}`,
              text: zone === "browser" ? t("common.range.browserZone") : zone,
              checked: settings.timeZone === zone,
              run: () => changeSettings({ timeZone: zone }),
            })),
          },
        ]}
      >
        <Icon name="clock" />
        <span className="tool-text">{text}</span>
        <Icon name="chevron-down" size={12} />
      </MenuButton>
      <Suspense>{absolute && <RangeDialog range={range} close={() => setAbsolute(false)} />}</Suspense>
    </>
  );
}

function useRangeText(range: Range): string {
  const t = useT();
  const zone = useTimeZone();
  if (range.key !== "absolute") return t(`common.range.${range.key}`);
  const locale = presentLanguage();
  const sameDay = formatTime(range.from, "date", locale, zone) === formatTime(range.to, "date", locale, zone);
  const short = (time: Date) =>
    new Intl.DateTimeFormat(locale, {
      month: "short",
      day: "numeric",
      hour: "2-digit",
      minute: "2-digit",
      hourCycle: "h23",
      timeZone: zone,
    }).format(time);
  const clock = (time: Date) =>
    new Intl.DateTimeFormat(locale, {
      hour: "2-digit",
      minute: "2-digit",
      hourCycle: "h23",
      timeZone: zone,
    }).format(time);
  return `${short(range.from)} – ${sameDay ? clock(range.to) : short(range.to)}`;
}
