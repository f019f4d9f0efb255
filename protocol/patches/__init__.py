"""Make and apply exact patches, which turn the files of one policy version into those of a later one.

A peer that applies a patch obtains the same bytes as a peer that fetched the whole version.

- `byte_streams`: one stream of a patch: absent, raw, or compressed with zstd, whichever is smallest
- `chunks`: a patch as chunks of the manifest that lists it
- `patch`: makes and applies a patch
- `segment_decoder`: reads a segment from a patch, and makes the target's bytes from the base's
- `segment_encoder`: encodes the difference between two equally long runs of elements
- `segment_format`: the part that encoder and decoder share: encodings, and the elements of a dtype as integers
- `subset`: some elements of a segment: how many, and where the n-th is
- `worker_pool`: jobs on several threads, with results in the order of the jobs
"""
