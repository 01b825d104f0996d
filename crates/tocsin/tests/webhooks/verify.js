// Verifies webhooks with the published library: a JSON object a line, `secret`, `headers` and `body` in base64.
const { Webhook } = require("standardwebhooks");

let verified = 0;
for (const line of require("fs").readFileSync(0, "utf8").trim().split("\n")) {
  const hook = JSON.parse(line);
  const webhook = new Webhook(hook.secret);
  const body = Buffer.from(hook.body, "base64").toString("utf8");
  webhook.verify(body, hook.headers);
  try {
    webhook.verify(body + " ", hook.headers);
  } catch {
    verified += 1;
  }
}
console.log(verified);
