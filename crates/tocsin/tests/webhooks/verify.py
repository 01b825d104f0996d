"""Verifies webhooks with the published library: a JSON object a line, `secret`, `headers` and `body` in base64."""

import base64
import json
import sys

from standardwebhooks.webhooks import Webhook, WebhookVerificationError

verified = 0
for line in sys.stdin:
    hook = json.loads(line)
    webhook, body = Webhook(hook["secret"]), base64.b64decode(hook["body"])
    webhook.verify(body.decode(), hook["headers"])
    try:
        webhook.verify(body.decode() + " ", hook["headers"])
    except WebhookVerificationError:
        verified += 1
print(verified)
