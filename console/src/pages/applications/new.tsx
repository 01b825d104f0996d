// A new application: the editor with a small definition that runs as it is.
import { useState } from "react";
import { useGo } from "../../components/link";
import { useT } from "../../locales";
import { Page } from "../../shell/page-frame";
import { Definition } from "./definition";
import "./page.css";

/** The smallest definition that notifies: a complete flow, whose names are to be changed. */
const template = `application: doors
description: Notifications of opened doors

events:
  opened:
    fields:
      door: {type: string, required: true}
      at: timestamp

subscriptions:
  watch:
    fields:
      door: {type: string, required: true}

notifications:
  door_opened:
    fields: {door: string, at: timestamp}
    content:
      engine: jinja
      templates:
        base:
          subject: 'Door {{ door }} was opened'
          text: 'Door {{ door }} was opened{% if at %} at {{ at|time }}{% endif %}.'

rules:
  watched:
    on: opened
    subscription: watch
    when: event.door == sub.door
    notify: door_opened

channels:
  inbox:
    protocol: inbox
`;

export default function NewApplicationPage() {
  const t = useT();
  const go = useGo();
  const [draft, setDraft] = useState(template);
  return (
    <Page
      title={t("applications.new")}
      crumbs={[{ to: "/applications", text: t("applications.title") }]}
      about={t("applications.newAbout")}
      command={{ tocsin: "apply application.yaml" }}
    >
      <Definition
        name={null}
        stored=""
        version={null}
        draft={draft}
        onDraft={setDraft}
        onApplied={(name) => go(`/applications/${name}`)}
      />
    </Page>
  );
}
