// Reads what was sent to a browser with libraries that are not ours: http_ece decrypts it, jose verifies who sent it.
// A request a line: {body, authorization, audience, private, auth}. Prints a line of JSON for each.
const { createECDH } = require("node:crypto");
const ece = require("http_ece");
const { importJWK, jwtVerify } = require("jose");

async function read(request) {
  const browser = createECDH("prime256v1");
  browser.setPrivateKey(request.private, "base64url");
  const body = Buffer.from(request.body, "base64url");
  const text = ece.decrypt(body, { version: "aes128gcm", privateKey: browser, authSecret: request.auth });
  const [, token, key] = request.authorization.match(/^vapid t=([\w.-]+), k=([\w-]+)$/);
  const point = Buffer.from(key, "base64url");
  const jwk = {
    kty: "EC", crv: "P-256",
    x: point.subarray(1, 33).toString("base64url"), y: point.subarray(33).toString("base64url"),
  };
  const { payload } = await jwtVerify(token, await importJWK(jwk, "ES256"), {
    algorithms: ["ES256"], audience: request.audience, maxTokenAge: undefined, requiredClaims: ["exp", "sub"],
  });
  if (payload.exp - Date.now() / 1000 > 24 * 3600) throw new Error("the token lasts longer than a day");
  return { text: text.toString("utf8"), subject: payload.sub, key };
}

(async () => {
  const lines = require("node:fs").readFileSync(0, "utf8").split("\n").filter((line) => line);
  for (const line of lines) console.log(JSON.stringify(await read(JSON.parse(line))));
})();
