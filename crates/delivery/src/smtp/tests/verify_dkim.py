"""Mails and DNS records come in as JSON; which signatures of each mail are valid goes out."""
import json, sys
import dkim

question = json.load(sys.stdin)


def record(name, timeout=5):
    name = name.decode() if isinstance(name, bytes) else name
    return question['records'][name.rstrip('.')].encode()


def valid(mail, index):
    try:
        return bool(dkim.DKIM(mail).verify(idx=index, dnsfunc=record))
    except dkim.DKIMException:
        return False


mails = [mail.encode() for mail in question['mails']]
print(json.dumps([[valid(mail, index) for index in range(mail.count(b'DKIM-Signature:'))] for mail in mails]))
