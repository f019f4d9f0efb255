"""Keeps a node at the newest policy version: it hears of a version, finds its manifest, and chooses the cheapest way to
its bytes. The chunks themselves are moved by `swarm.transfer`.

- `announcements`: which announced version is fetched, queued or ignored
- `fetcher`: brings one version here whole, from its own chunks or by patches
- `follower`: the loop that keeps a node at the newest version
- `manifest_inquiry`: which peer is asked for a manifest, when the next one is asked as well
- `manifest_search`: asks peers for a manifest, which may need more than one answer
- `patch_routes`: which way to a version costs least: its chunks, one patch, or a chain of patches
"""
