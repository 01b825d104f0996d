"""What the tests of ldap3 ask of the place where they run: a server, names, and how entries are made there.

The suite as published brings no such file; it is written by whoever runs it. Of the server types that the tests know,
SLAPD stands for one that keeps to the standards.
"""

import os
import random

import ldap3
from ldap3 import ALL, ANONYMOUS, ROUND_ROBIN, SASL, SIMPLE, Connection, Server

PORTS = {389: int(os.environ["PORT"]), 636: int(os.environ["PORT_TLS"]), None: int(os.environ["PORT"])}

test_server = "127.0.0.1"
test_port, test_port_ssl = 389, 636
test_server_type = "SLAPD"
test_server_mode = ldap3.IP_V4_ONLY
test_strategy = getattr(ldap3, os.environ["STRATEGY"])
test_authentication = SIMPLE
test_get_info = ALL
test_check_names = test_auto_escape = test_auto_encode = test_lazy_connection = True
test_validator = {}
test_pooling_strategy, test_pooling_active, test_pooling_exhaust = ROUND_ROBIN, 20, 15

test_user, test_password = "cn=admin,o=tocsin", os.environ["PASSWORD"]
test_secondary_user, test_secondary_password = "uid=second,ou=people,o=tocsin", "open sesame"
test_user_password = "Rc2597pfop"
test_base, test_moved = "ou=fixtures,o=tocsin", "ou=moved,o=tocsin"
test_root_partition = ""
test_name_attr, test_int_attr = "cn", "gidNumber"
test_multivalued_attribute, test_singlevalued_attribute = "givenName", "employeeNumber"
test_valid_names = ["127.0.0.1", "localhost"]
test_ca_cert_file = os.environ["CERTIFICATE"]
test_user_cert_file = test_user_key_file = ""

# For servers of other kinds.
test_server_context = test_server_edir_name = test_ntlm_user = test_ntlm_password = ""
test_sasl_user = test_sasl_user_dn = test_sasl_password = test_sasl_realm = None
test_sasl_secondary_user = test_sasl_secondary_user_dn = test_sasl_secondary_password = None


def _with_our_ports(made):
    """Some tests name the ports of the standard, which a test must not take."""

    def init(self, host, port=None, use_ssl=False, *arguments, **named):
        if "://" not in host:
            port = PORTS.get(636 if port is None and use_ssl else port, port)
        made(self, host, port, use_ssl, *arguments, **named)

    return init


Server.__init__ = _with_our_ports(Server.__init__)


def random_id():
    return f"{random.randrange(100_000):05}"


def generate_dn(base, batch_id, name):
    return f"{test_name_attr}={batch_id}{name},{base}"


def get_connection(
    bind=True, use_ssl=False, check_names=test_check_names, lazy_connection=test_lazy_connection,
    authentication=SIMPLE, sasl_mechanism=None, sasl_credentials=None, ntlm_credentials=None, get_info=test_get_info,
    usage=True, internal_decoder=True, simple_credentials=(None, None), receive_timeout=None,
    auto_escape=True, auto_encode=True,
):
    server = Server(
        test_server, test_port_ssl if use_ssl else test_port, use_ssl, get_info=get_info, mode=test_server_mode,
        allowed_referral_hosts=("*", True),
    )
    user, password = simple_credentials
    known = authentication == SIMPLE
    return Connection(
        server, user=(user or test_user) if known else None, password=(password or test_password) if known else None,
        auto_bind=bind, authentication=None if authentication == ANONYMOUS else authentication,
        sasl_mechanism=sasl_mechanism if authentication == SASL else None, sasl_credentials=sasl_credentials,
        client_strategy=test_strategy, lazy=lazy_connection, check_names=check_names, collect_usage=usage,
        fast_decoder=internal_decoder, receive_timeout=receive_timeout, auto_escape=auto_escape,
        auto_encode=auto_encode, pool_name="pool", pool_size=5,
    )


def get_response_values(outcome, connection):
    """What an operation came to, however this strategy tells it: status, result, response, request."""
    if connection.strategy.thread_safe:
        return outcome
    if connection.strategy.sync:
        return outcome, connection.result, connection.response, connection.request
    response, result, request = connection.get_response(outcome, get_request=True)
    done = result["description"] in ("success", "compareTrue")
    return done, result, response, request


def _ensure(connection, dn, outcome):
    _, result, _, _ = get_response_values(outcome, connection)
    if result["description"] != "success":
        raise AssertionError(f"{dn}: {result}")
    return dn, result


def drop_connection(connection, dn_to_delete=None):
    for dn, _ in dn_to_delete or []:
        get_response_values(connection.delete(dn), connection)
    connection.unbind()
    if connection.strategy.pooled:
        connection.strategy.terminate()


def get_add_user_attributes(batch_id, username, password=None, attributes=None):
    given = attributes or {}
    return {
        **given, "objectClass": ["inetOrgPerson", "posixAccount", "top"], "sn": username, "uid": batch_id + username,
        "uidNumber": 1000, "gidNumber": given.get("gidNumber", 0), "homeDirectory": "/nowhere",
    }


def _bytes(attributes):
    def encoded(value):
        if isinstance(value, (list, tuple)):
            return [encoded(item) for item in value]
        return value.encode() if isinstance(value, str) else value

    return {name: encoded(value) for name, value in attributes.items()}


def add_user(connection, batch_id, username, password=None, attributes=None, test_bytes=False):
    entry = get_add_user_attributes(batch_id, username, password, attributes)
    dn = generate_dn(test_base, batch_id, username)
    return _ensure(connection, dn, connection.add(dn, None, _bytes(entry) if test_bytes else entry))


def add_group(connection, batch_id, groupname, members=None, test_bytes=False):
    entry = {"objectClass": "groupOfNames", "member": [member for member, _ in members or []]}
    dn = generate_dn(test_base, batch_id, groupname)
    return _ensure(connection, dn, connection.add(dn, [], _bytes(entry) if test_bytes else entry))
