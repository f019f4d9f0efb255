"""Exact patches: how the files of one policy version follow from those of an earlier one. A peer that applies a patch
obtains the same bytes as a peer that fetched the version whole.

- `byte_streams`: one stream of a patch: absent, as it is, or under zstd, whichever is smallest
- `chunks`: a patch as chunks of the manifest that offers it
- `patch`: a patch made and applied
- `segment_decoder`: a segment read from a patch, and made of the base's bytes
- `segment_encoder`: the difference between two equally long runs of elements
- `segment_format`: what writers and readers of segments share: roads, and how the elements of a dtype are looked at
- `subset`: some elements of a segment: how many, and where the n-th is
- `worker_pool`: jobs on several threads, with results in the order of the jobs
"""
