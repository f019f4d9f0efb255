"""Run a node of libtorrent, with the settings that suit a closed group.

It uses a v1 torrent of 256 KiB pieces, without DHT, local discovery, port mapping, uTP or encryption. No peer is choked
or rate-limited. Peers get each other's addresses directly, and open one connection for each pair after GO.

Invariant: DONE means that every piece was hashed and written.
"""

from __future__ import annotations

import time
from typing import Any

import libtorrent as lt

from benchmarks.network.program_end import Assignment, ProgramEnd

PORT = 6881
PIECE_BYTES = 256 * 1024
PLAINTEXT_ONLY = 2
PREFER_TCP = 0
LISTENING_S = 0.2
"""Wait until its listening socket is open, which it does not report."""

POLL_S = 0.01


def settings(address: str) -> Any:  # its stubs require a type that cannot be created
    return {
        "listen_interfaces": f"{address}:{PORT}",
        "enable_dht": False,
        "enable_lsd": False,
        "enable_upnp": False,
        "enable_natpmp": False,
        "enable_incoming_utp": False,
        "enable_outgoing_utp": False,
        "out_enc_policy": PLAINTEXT_ONLY,
        "in_enc_policy": PLAINTEXT_ONLY,
        "unchoke_slots_limit": -1,
        "connection_speed": 500,
        "smooth_connects": False,
        "min_reconnect_time": 1,
        "unchoke_interval": 1,
        "tick_interval": 100,
        "rate_limit_ip_overhead": False,
        "close_redundant_connections": True,
        "send_buffer_watermark": 1 << 20,
        "send_buffer_low_watermark": 1 << 18,
        "max_out_request_queue": 1500,
        "request_queue_time": 1,
        "allow_multiple_connections_per_ip": True,
        "mixed_mode_algorithm": PREFER_TCP,
        "alert_mask": lt.alert.category_t.status_notification | lt.alert.category_t.error_notification,
    }


def torrent(task: Assignment) -> lt.torrent_info:
    """Return the torrent: the source makes it, the others wait for it."""
    path = task.shared / "torrent"
    if task.is_source:
        entry = lt.create_file_entry(task.payload.name, task.payload.stat().st_size)
        made = lt.create_torrent([entry], PIECE_BYTES, lt.create_torrent.v1_only)
        lt.set_piece_hashes(made, str(task.payload.parent))
        scratch = path.with_suffix(".part")
        scratch.write_bytes(lt.bencode(made.generate()))
        scratch.rename(path)
    while not path.exists():
        time.sleep(POLL_S)
    return lt.torrent_info(str(path))


def parameters(task: Assignment) -> lt.add_torrent_params:
    wanted = lt.add_torrent_params()
    wanted.ti = torrent(task)
    wanted.save_path = str(task.payload.parent if task.is_source else task.directory)
    wanted.flags &= ~(lt.torrent_flags.auto_managed | lt.torrent_flags.paused)
    if task.is_source:
        wanted.flags |= lt.torrent_flags.seed_mode
    return wanted


def play(program_end: ProgramEnd) -> None:
    """Perform one run, from READY to REPORT."""
    task = program_end.assignment
    session = lt.session(settings(task.address))
    wanted = parameters(task)
    time.sleep(LISTENING_S)
    program_end.ready()
    program_end.wait_go()
    handle = session.add_torrent(wanted)
    for address in task.addresses[: task.index]:
        handle.connect_peer((address, PORT))
    if not task.is_source:
        while not handle.status().is_seeding:
            session.wait_for_alert(20)
            session.pop_alerts()
            time.sleep(POLL_S)
        program_end.done()
    program_end.wait_end()
    moved = handle.status()
    file = task.payload if task.is_source else task.directory / task.payload.name
    program_end.report(file, up={"all": moved.total_payload_upload}, down={"all": moved.total_payload_download})


if __name__ == "__main__":
    play(ProgramEnd())
