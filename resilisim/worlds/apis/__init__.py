"""Real APIs: 23 public HTTP services without keys as tools, and a twin that answers in their place.

Nothing here needs a network but calls of the real hosts; calls need the extra `apis`.
"""

from __future__ import annotations

from resilisim.worlds.apis.api import find_api, read_api
from resilisim.worlds.apis.api_client import Address, ApiClient
from resilisim.worlds.apis.twin import Twin, TwinLaw

__all__ = ["Address", "ApiClient", "Twin", "TwinLaw", "find_api", "read_api"]
