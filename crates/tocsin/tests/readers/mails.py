"""Reads mails with Python's own library: a JSON text of the raw mail in each line, what it holds in each line of the answer."""

import json
import sys
from email import message_from_string, policy
from html.parser import HTMLParser


class Structure(HTMLParser):
    """The elements of a page with the names of their attributes, and its text."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.elements, self.text = [], []

    def handle_starttag(self, tag, attributes):
        self.elements.append([tag] + [name for name, _ in attributes])

    def handle_data(self, text):
        self.text.append(text)


for line in sys.stdin:
    mail = message_from_string(json.loads(line), policy=policy.default)
    parts = []
    for part in mail.walk():
        if part.is_multipart():
            continue
        content = part.get_content()
        page = Structure()
        if part.get_content_type() == "text/html":
            page.feed(content)
            page.close()
        parts.append({
            "type": part.get_content_type(),
            "name": part.get_filename(),
            "elements": page.elements,
            "content": "".join(page.text) if page.elements else content,
        })
    print(json.dumps({
        "fields": sorted(name.lower() for name in mail.keys()),
        "subject": mail["subject"],
        "note": mail["x-note"],
        "to": [address.addr_spec for address in mail["to"].addresses],
        "defects": [repr(defect) for defect in mail.defects],
        "parts": parts,
    }))
