"""`taskgate call --login` as the client that the official suite tests: what the suite says of a scenario, as options.

The suite runs it with the URL of its server as the last argument; TASKGATE names the binary, BROWSER what stands for one.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

METADATA_URL = "https://conformance-test.local/client-metadata.json"  # of a client that the suite's server knows
LIMIT = 20


def main() -> int:
    scenario, url = os.environ["MCP_CONFORMANCE_SCENARIO"], sys.argv[-1]
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
    era = "modern" if os.environ["MCP_CONFORMANCE_PROTOCOL_VERSION"] >= "2026-07-28" else "legacy"
    with tempfile.TemporaryDirectory() as folder:
        command = [os.environ["TASKGATE"], "call", url, "test-tool", "--login", "--era", era,
                   "--token-file", f"{folder}/own/tokens.json"]
        if "client_id" in context:
            secret = Path(folder) / "secret"
            secret.write_text(context["client_secret"])
            secret.chmod(0o600)
            command += ["--client-id", context["client_id"], "--client-secret-file", str(secret)]
        if scenario == "auth/basic-cimd":
            command += ["--client-metadata-url", METADATA_URL]
        # Where the authorization server changes, it does so after the first call.
        for _ in range(2 if scenario == "auth/authorization-server-migration" else 1):
            code = subprocess.run(command, timeout=LIMIT, stdin=subprocess.DEVNULL, check=False).returncode
    return code


sys.exit(main())
