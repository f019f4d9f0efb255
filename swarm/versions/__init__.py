"""Keep a node at the newest policy version: receive its announcement, find its manifest, and fetch it the cheapest way.

`swarm.transfer` moves the chunks.

- `announcements`: which announced version is fetched, queued or ignored
- `fetcher`: fetches one whole version, from its own chunks or by patches
- `follower`: the loops that keep a node at the newest version
- `manifest_inquiry`: which peer is asked for a manifest, and when another one is asked as well
- `manifest_search`: asks peers for a manifest, which may need more than one answer
- `patch_routes`: the cheapest route to a version: its chunks, one patch, or a chain of patches
"""
