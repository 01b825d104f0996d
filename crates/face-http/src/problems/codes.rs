//! Kinds and codes of problem documents.

use axum::http::StatusCode;

/// The kinds of problems: `type`, title, status and page.
#[derive(Debug)]
pub(crate) struct Kind {
    pub(crate) slug: &'static str,
    pub(crate) title: &'static str,
    pub(crate) status: StatusCode,
    pub(crate) help: &'static str,
}

macro_rules! kinds {
    ($($name:ident $slug:literal $status:ident $title:literal $help:literal;)*) => {
        $(const $name: &Kind = &Kind { slug: $slug, title: $title, status: StatusCode::$status, help: $help };)*
        /// All kinds, for their pages.
        pub(crate) const KINDS: &[&Kind] = &[$($name),*];
    };
}

kinds! {
    MALFORMED "malformed" BAD_REQUEST "The request cannot be read"
        "The body, an address or a parameter does not have the form it should. If known, `problems` has the line and column.";
    UNAUTHENTICATED "unauthenticated" UNAUTHORIZED "A good key is needed"
        "Send `Authorization: Bearer tocsin_...` with a key that exists, has not been removed and has not expired. A request that was waiting when its key ended may have done its work: look before you repeat it.";
    LOGIN "login-failed" UNAUTHORIZED "The login failed"
        "Check the name and the password, or request another link. The response is the same for an unknown name.";
    REAUTHENTICATION "reauthentication-required" FORBIDDEN "A recent proof of identity is needed"
        "Send the password to `/v1/session/reauthenticate`, then repeat the request within ten minutes.";
    CROSS_SITE "cross-site-request" FORBIDDEN "The request may be forged"
        "A change with a session comes from a page of this server, with the header `X-Tocsin-CSRF`. Programs use a key instead.";
    INSECURE_TRANSPORT_KIND "insecure-transport" FORBIDDEN "The transport is not encrypted"
        "Open the console over https, or as http://127.0.0.1 on the machine of the server. Behind a proxy, set `http.public_url`.";
    FORBIDDEN "forbidden" FORBIDDEN "The key may not do this"
        "The key is valid but lacks the scope named in `scope`. Create a key with this scope, or ask an administrator.";
    UNVERIFIED "unverified-webhook" FORBIDDEN "The webhook is not verified"
        "The signature, the credential, the time or the topic of the webhook is not the one that the option `feedback` of the channel expects. Compare the key with that of the provider, and the clock with the time.";
    NOT_FOUND "not-found" NOT_FOUND "There is no such thing"
        "Nothing is at this address: it never was, or it has been removed.";
    METHOD_NOT_ALLOWED "method-not-allowed" METHOD_NOT_ALLOWED "The method is not for this address"
        "The header `Allow` names the methods that are.";
    TIMEOUT "timeout" REQUEST_TIMEOUT "The request took too long"
        "The body paused for too long. Send it again, without a pause.";
    TAKEN "exists" CONFLICT "It exists already"
        "Something of this name exists. Change it, or choose another name.";
    IN_USE "in-use" CONFLICT "Something else needs it"
        "`detail` says what. Change that first, then try again.";
    WOULD_DROP "would-drop-data" CONFLICT "Applying this would drop data"
        "Each of `drops` is stored and would be lost from sight. Keep it in the definition, or allow it by its name: `?allow_drop=a.b,c.d`.";
    LAST_ADMIN "last-admin-key" CONFLICT "It is the last admin key"
        "Without a key of the scope `admin` no further keys could be created. Create another one first, then remove this one.";
    LAST_ADMIN_USER_KIND "last-admin-user" CONFLICT "It is the last administrator"
        "One enabled user has the role `admin` at all times. Give the role to another user first.";
    KEY_REUSED "idempotency-key-reused" CONFLICT "The idempotency key came before with other content"
        "A key stands for one content. Send the same content again, or choose a new key.";
    OUTDATED "outdated" GONE "It is too old"
        "The cursor or the session says less than the device needs by now. Begin a session anew; edits that were not sent are sent first.";
    CHANGED "changed" PRECONDITION_FAILED "It has changed in the meantime"
        "`If-Match` named a revision that is not the present one, or `If-None-Match: *` met something. Read it again.";
    TOO_LARGE "too-large" PAYLOAD_TOO_LARGE "The body is too large"
        "`bytes_max` says how much fits. Many things at once go by the streaming imports and application/x-ndjson.";
    UNSUPPORTED "unsupported-media-type" UNSUPPORTED_MEDIA_TYPE "The body's media type is not known here"
        "`supported` names those that are. Set `Content-Type`.";
    INVALID "invalid" UNPROCESSABLE_ENTITY "The content is not valid"
        "The body is well-formed but invalid: `problems` lists each error with its path and the expected value.";
    TOO_MANY "too-many" TOO_MANY_REQUESTS "Too much at once"
        "A bound is reached. Nothing was stored. Try again after the time that `Retry-After` names.";
    NOT_ANSWERED "not-answered" BAD_GATEWAY "There is no reply now"
        "The request is stored, but no receiver answered it: `detail` has the reason. It is suspended, or was cancelled by an operator. Repeat it with the same `Idempotency-Key`, or look at `reply`.";
    EXPIRED "not-answered-in-time" GATEWAY_TIMEOUT "No reply in time"
        "The timeout of the receive port has passed. A later reply is stored, but not returned.";
    INTERNAL "internal" INTERNAL_SERVER_ERROR "Something broke"
        "This is a fault of the platform. The log knows more, by the request's `X-Request-Id`.";
    BUSY "busy" SERVICE_UNAVAILABLE "There is no room just now"
        "The disk or a bound is full. Nothing was stored. Try again after the time that `Retry-After` names.";
    UNAVAILABLE "unavailable" SERVICE_UNAVAILABLE "Not possible at the moment"
        "A part of the platform does not answer. Nothing was acknowledged. Try again after the time that `Retry-After` names.";
}

/// A code of problem documents: one case of a kind.
#[derive(Debug)]
pub(crate) struct DocumentCode {
    pub(crate) word: &'static str,
    pub(crate) kind: &'static Kind,
    pub(crate) meaning: &'static str,
}

macro_rules! document_codes {
    ($($name:ident $word:literal $kind:ident $meaning:literal;)*) => {
        $(pub(crate) const $name: &DocumentCode = &DocumentCode { word: $word, kind: $kind, meaning: $meaning };)*
        /// All codes of problem documents.
        pub(crate) const DOCUMENT_CODES: &[&DocumentCode] = &[$($name),*];
    };
}

document_codes! {
    MALFORMED_REQUEST "malformed_request" MALFORMED "The request line or the header `Host` is not valid.";
    MALFORMED_PATH "malformed_path" MALFORMED "A segment of the path does not have its form, such as an id.";
    MALFORMED_QUERY "malformed_query" MALFORMED "The query has an unknown parameter, or a value of the wrong type.";
    MALFORMED_HEADER "malformed_header" MALFORMED "A header field does not have its form.";
    UNSUPPORTED_HEADER "unsupported_header" MALFORMED "The route does not evaluate this header field.";
    MALFORMED_BODY "malformed_body" MALFORMED "The body is not valid in its media type; `problems` has the position.";
    INCOMPLETE_BODY "incomplete_body" MALFORMED "The connection ended before the end of the body.";
    CONFIRMATION_REQUIRED "confirmation_required" MALFORMED "The operation needs the parameter `confirm`.";
    CREDENTIALS_REQUIRED "credentials_required" UNAUTHENTICATED "The request has no key or token.";
    CREDENTIALS_MALFORMED "credentials_malformed" UNAUTHENTICATED "The header `Authorization` does not have its form.";
    CREDENTIALS_UNKNOWN "credentials_unknown" UNAUTHENTICATED "The key or token does not exist.";
    CREDENTIALS_EXPIRED "credentials_expired" UNAUTHENTICATED "The key or token has expired.";
    CREDENTIALS_REVOKED "credentials_revoked" UNAUTHENTICATED "The key or token was revoked.";
    CREDENTIALS_CHANGED "credentials_changed" UNAUTHENTICATED
        "The scopes of the key were changed during the request; send it again.";
    SEVERAL_CREDENTIALS "several_credentials" MALFORMED "The request has a key and the cookie of a session.";
    LOGIN_FAILED "login_failed" LOGIN "The name, the password or the link is wrong.";
    NO_ROLE "no_role" FORBIDDEN "The user of the OpenID provider has no role here.";
    PASSWORDS_DISABLED "passwords_disabled" FORBIDDEN "Users log in through the OpenID provider only.";
    LOGIN_LOCKED "login_locked" TOO_MANY "Too many logins with this name failed from this network.";
    REAUTHENTICATION_REQUIRED "reauthentication_required" REAUTHENTICATION
        "The last proof of identity is older than ten minutes.";
    CSRF_TOKEN "csrf_token" CROSS_SITE "The header `X-Tocsin-CSRF` is missing or wrong.";
    CROSS_ORIGIN "cross_origin" CROSS_SITE "The request does not come from a page of this server.";
    INSECURE_TRANSPORT "insecure_transport" INSECURE_TRANSPORT_KIND
        "A login over plain HTTP is possible on a loopback host only.";
    INSUFFICIENT_SCOPE "insufficient_scope" FORBIDDEN "The key lacks the scope in `scope`.";
    OUTSIDE_RESOURCES "outside_resources" FORBIDDEN "The key is limited to other resources.";
    DEVICE_NOT_PERMITTED "device_not_permitted" FORBIDDEN "The token of the device does not permit this.";
    WEBHOOK_UNSIGNED "webhook_unsigned" UNVERIFIED "The webhook has no signature or credential.";
    WEBHOOK_SIGNATURE "webhook_signature" UNVERIFIED "The signature or credential of the webhook is wrong.";
    WEBHOOK_STALE "webhook_stale" UNVERIFIED "The time of the webhook is outside of the replay window.";
    WEBHOOK_CERTIFICATE "webhook_certificate" UNVERIFIED "The certificate of the webhook's signature cannot be used.";
    WEBHOOK_TOPIC "webhook_topic" UNVERIFIED "The webhook is of another topic than the configured one.";
    DIRECTORY_DISABLED "directory_disabled" NOT_FOUND "No directory is configured on the server.";
    NOT_FOUND_CODE "not_found" NOT_FOUND "The object does not exist, or is outside of the resources of the key.";
    ROUTE_NOT_FOUND "route_not_found" NOT_FOUND "There is no route with this path.";
    METHOD_NOT_ALLOWED_CODE "method_not_allowed" METHOD_NOT_ALLOWED "The route does not support the method.";
    REQUEST_TIMEOUT "request_timeout" TIMEOUT "The body arrived too slowly.";
    ALREADY_EXISTS "already_exists" TAKEN "An object of this name exists.";
    ENTRY_HAS_CHILDREN "entry_has_children" IN_USE "The entry of the directory has entries below it.";
    IN_USE_CODE "in_use" IN_USE "Another object refers to this one.";
    WOULD_DROP_DATA "would_drop_data" WOULD_DROP "The definition would drop stored data; `drops` lists the paths.";
    LAST_ADMIN_KEY "last_admin_key" LAST_ADMIN "The key is the last one with the scope `admin`.";
    LAST_ADMIN_USER "last_admin_user" LAST_ADMIN_USER_KIND "The user is the last enabled one with the role `admin`.";
    IDEMPOTENCY_KEY_REUSED "idempotency_key_reused" KEY_REUSED "The idempotency key was used for other content.";
    OUTDATED_CODE "outdated" OUTDATED "The cursor or session is too old.";
    PRECONDITION_FAILED "precondition_failed" CHANGED "`If-Match` or `If-None-Match` does not hold.";
    REVISION_CONFLICT "revision_conflict" CHANGED "The object was changed by another request in the meantime.";
    BODY_TOO_LARGE "body_too_large" TOO_LARGE "The body is larger than `bytes_max`.";
    UNSUPPORTED_MEDIA_TYPE "unsupported_media_type" UNSUPPORTED
        "The route does not support the media type of the body.";
    UNSUPPORTED_CONTENT_ENCODING "unsupported_content_encoding" UNSUPPORTED
        "The route does not support the content coding of the body.";
    INVALID_CONTENT "invalid_content" INVALID "The content is not valid; each of `problems` has a code.";
    RATE_LIMITED "rate_limited" TOO_MANY "The key or the address sends more requests per second than allowed.";
    CONCURRENCY_LIMITED "concurrency_limited" TOO_MANY "Too many requests of this kind run at the same time.";
    NOT_ANSWERED_CODE "not_answered" NOT_ANSWERED "No receiver answered the message.";
    NOT_ANSWERED_IN_TIME "not_answered_in_time" EXPIRED "No receiver answered within the timeout of the receive port.";
    INTERNAL_CODE "internal" INTERNAL "The server failed.";
    CAPACITY_EXCEEDED "capacity_exceeded" BUSY "A queue, the disk or another limit of the server is full.";
    PORT_THROTTLED "port_throttled" BUSY "The receive port accepts no message now; `reason` has the cause.";
    SYNC_POOL_FULL "sync_pool_full" BUSY
        "Too many devices synchronize at the same time; `position` is the place in the queue.";
    SYNC_WATCHERS_FULL "sync_watchers_full" BUSY
        "Too many devices wait for changes (`sync.watchers_max`); `position` is their number.";
    SYNC_SESSION_BUSY "sync_session_busy" BUSY "Another request of this sync session is in progress.";
    TOO_MANY_CONNECTIONS "too_many_connections" BUSY "Too many connections are open.";
    UNAVAILABLE_CODE "unavailable" UNAVAILABLE "A part of the server does not answer.";
}
