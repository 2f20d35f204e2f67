"""Real APIs: 23 public HTTP services without keys as tools, and a twin that answers in their place.

Nothing here needs a network but calls of the real hosts; calls need the extra `apis`.
"""

from __future__ import annotations

from resilisim.worlds.apis.api import PublicApi, api_library, find_api, public_apis, read_api
from resilisim.worlds.apis.assessment import ApiReliability, Assessment, assess, assessed
from resilisim.worlds.apis.client import Address, ApiCall, ApiClient
from resilisim.worlds.apis.twin import Twin, TwinLaw

__all__ = [
    "Address",
    "ApiCall",
    "ApiClient",
    "ApiReliability",
    "Assessment",
    "PublicApi",
    "Twin",
    "TwinLaw",
    "api_library",
    "assess",
    "assessed",
    "find_api",
    "public_apis",
    "read_api",
]
