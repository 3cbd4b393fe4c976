//! Keys that sign tokens: made when they are needed, but for the RSA key, which ring cannot make. That one is the example of
//! RFC 7515, A.2, and known to everybody.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::rsa::{KeyPairComponents, PublicKeyComponents};
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair,
    RSA_PKCS1_SHA256, RSA_PKCS1_SHA384, RSA_PKCS1_SHA512, RSA_PSS_SHA256, RSA_PSS_SHA384, RSA_PSS_SHA512, RsaEncoding,
    RsaKeyPair,
};
use serde_json::{Value, json};

/// A key with its name.
pub(crate) struct Key {
    kid: String,
    alg: &'static str,
    pair: Pair,
}

enum Pair {
    Ecdsa(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
    Rsa(Box<RsaKeyPair>, &'static dyn RsaEncoding),
}

const N: &str = "ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yR\
                 T-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXB\
                 dQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9ia\
                 GNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ";
const D: &str = "Eq5xpGnNCivDflJsRQBXHx1hdR1k6Ulwe2JZD50LpXyWPEAeP88vLNO97IjlA7_GQ5sLKMgvfTeXZx9SE-7YwVol2NXOoAJe46su\
                 i395IW_GO-pWJ1O0BkTGoVEn2bKVRUCgu-GjBVaYLU6f3l9kJfFNS3E0QbVdxzubSu3Mkqzjkn439X0M_V51gfpRLI9JYanrC4D4\
                 qAdGcopV_0ZHHzQlBjudU2QvXt4ehNYTCBr6XCLQUShb1juUO1ZdiYoFaFQT5Tw8bGUl_x_jTj3ccPDVZFD9pIuhLhBOneufuBiB\
                 4cS98l2SR_RQyGWSeWjnczT0QU91p1DhOVRuOopznQ";
const P: &str = "4BzEEOtIpmVdVEZNCqS7baC4crd0pqnRH_5IB3jw3bcxGn6QLvnEtfdUdiYrqBdss1l58BQ3KhooKeQTa9AB0Hw_Py5PJdTJNPY8\
                 cQn7ouZ2KKDcmnPGBY5t7yLc1QlQ5xHdwW1VhvKn-nXqhJTBgIPgtldC-KDV5z-y2XDwGUc";
const Q: &str = "uQPEfgmVtjL0Uyyx88GZFF1fOunH3-7cepKmtH4pxhtCoHqpWmT8YAmZxaewHgHAjLYsp1ZSe7zFYHj7C6ul7TjeLQeZD_YwD66t\
                 62wDmpe_HlB-TnBA-njbglfIsRLtXlnDzQkv5dTltRJ11BKBBypeeF6689rjcJIDEz9RWdc";
const DP: &str = "BwKfV3Akq5_MFZDFZCnW-wzl-CCo83WoZvnLQwCTeDv8uzluRSnm71I3QCLdhrqE2e9YkxvuxdBfpT_PI7Yz-FOKnu1R6HsJeDCj\
                  n12Sk3vmAktV2zb34MCdy7cpdTh_YVr7tss2u6vneTwrA86rZtu5Mbr1C1XsmvkxHQAdYo0";
const DQ: &str = "h_96-mK1R_7glhsum81dZxjTnYynPbZpHziZjeeHcXYsXaaMwkOlODsWa7I9xXDoRwbKgB719rrmI2oKr6N3Do9U0ajaHF-NKJnw\
                  gjMd2w9cjz3_-kyNlxAr2v4IKhGNpmM5iIgOS1VZnOZ68m6_pbLBSp3nssTdlqvd0tIiTHU";
const QI: &str = "IYd7DHOhrWvxkwPQsRM2tOgrjbcrfvtQJipd-DlcxyVuuM9sQLdgjVk2oy26F0EmpScGLq2MowX7fhd_QJQ3ydy5cY7YIBi87w93\
                  IKLEdfnbJtoOPLUW0ITrJReOgo1cq9SbsxYawBgfp_gh6A5603k2-ZQwVK0JKSHuLFkuQ3U";

/// Base64url without padding.
pub(crate) fn base64url(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

impl Key {
    /// A new key for that algorithm; all keys for RSA are the same one.
    pub(crate) fn new(kid: &str, alg: &'static str) -> Self {
        let ecdsa = |algorithm| {
            let random = SystemRandom::new();
            let document = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
            Pair::Ecdsa(EcdsaKeyPair::from_pkcs8(algorithm, document.as_ref(), &random).unwrap())
        };
        let pair = match alg {
            "ES256" => ecdsa(&ECDSA_P256_SHA256_FIXED_SIGNING),
            "ES384" => ecdsa(&ECDSA_P384_SHA384_FIXED_SIGNING),
            "EdDSA" => {
                let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
                Pair::Ed25519(Ed25519KeyPair::from_pkcs8(document.as_ref()).unwrap())
            }
            "RS256" => rsa(&RSA_PKCS1_SHA256),
            "RS384" => rsa(&RSA_PKCS1_SHA384),
            "RS512" => rsa(&RSA_PKCS1_SHA512),
            "PS256" => rsa(&RSA_PSS_SHA256),
            "PS384" => rsa(&RSA_PSS_SHA384),
            "PS512" => rsa(&RSA_PSS_SHA512),
            other => panic!("no key signs with {other}"),
        };
        Self { kid: kid.to_owned(), alg, pair }
    }

    /// Its public half (RFC 7517).
    pub(crate) fn jwk(&self) -> Value {
        let point = |pair: &EcdsaKeyPair| {
            let point = pair.public_key().as_ref();
            let (x, y) = point[1..].split_at(point.len() / 2);
            (base64url(x), base64url(y))
        };
        let mut jwk = match &self.pair {
            Pair::Ecdsa(pair) => {
                let (x, y) = point(pair);
                let curve = if self.alg == "ES256" { "P-256" } else { "P-384" };
                json!({"kty": "EC", "crv": curve, "x": x, "y": y})
            }
            Pair::Ed25519(pair) => json!({"kty": "OKP", "crv": "Ed25519", "x": base64url(pair.public_key())}),
            Pair::Rsa(..) => json!({"kty": "RSA", "n": N, "e": "AQAB"}),
        };
        jwk["kid"] = json!(self.kid);
        jwk["alg"] = json!(self.alg);
        jwk["use"] = json!("sig");
        jwk
    }

    /// The header that tokens usually have.
    pub(crate) fn header(&self) -> Value {
        json!({"alg": self.alg, "kid": self.kid, "typ": "at+jwt"})
    }

    /// A token (RFC 7515, 7.1), whatever its header says.
    pub(crate) fn sign(&self, header: &Value, claims: &Value) -> String {
        self.sign_text(&header.to_string(), &claims.to_string())
    }

    /// The same for texts that no `Value` is.
    pub(crate) fn sign_text(&self, header: &str, claims: &str) -> String {
        let input = format!("{}.{}", base64url(header), base64url(claims));
        let random = SystemRandom::new();
        let signature = match &self.pair {
            Pair::Ecdsa(pair) => pair.sign(&random, input.as_bytes()).unwrap().as_ref().to_vec(),
            Pair::Ed25519(pair) => pair.sign(input.as_bytes()).as_ref().to_vec(),
            Pair::Rsa(pair, padding) => {
                let mut signature = vec![0; pair.public().modulus_len()];
                pair.sign(*padding, &random, input.as_bytes(), &mut signature).unwrap();
                signature
            }
        };
        format!("{input}.{}", base64url(signature))
    }
}

fn rsa(padding: &'static dyn RsaEncoding) -> Pair {
    let of = |text: &str| URL_SAFE_NO_PAD.decode(text).unwrap();
    let components = KeyPairComponents {
        public_key: PublicKeyComponents { n: of(N), e: of("AQAB") },
        d: of(D),
        p: of(P),
        q: of(Q),
        dP: of(DP),
        dQ: of(DQ),
        qInv: of(QI),
    };
    Pair::Rsa(Box::new(RsaKeyPair::from_components(&components).unwrap()), padding)
}
