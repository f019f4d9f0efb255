"""Emulate a network on one machine: peers in Linux network namespaces, and the links of homes and data centres.

    emulation.py     nodes around one switch, each with its own uplink and downlink, and an optional delay
    namespaces.py    the namespaces, which remove themselves when their owner is gone
    delay_switch.c   the switch with delays, since many kernels lack netem
    routers.py       kinds of home routers, with the nftables rules of each
    homes.py         an internet: public hosts, and homes behind routers; a command that builds one to try by hand
    home.py          a home as a value; wiring.py builds it, and port_daemon.py runs the daemon that opens its ports
    router_probe.py  checks that each router behaves as its kind does; meeting_probe.py whether two nodes can connect,
                     daemon_probe.py whether a port is opened; ports.py is the port that they connect with
    introduction.py  lets a relay introduce two nodes in homes; node_reach.py is their program
    go_introduction.py    the same with go-libp2p; node_kubo.py is its program, node_observers.py tells it its address
    requirements.py  what the machine must offer, and how it is installed
    probe.py         measures a link, to check the emulation itself
    bound.py         how soon a file can reach all peers, by any method
    scenarios.py     the swarms that are measured; payload.py is what they send
    founding.py      the swarm that the programs below belong to
    line.py          the messages of a node's program and the conductor, on standard input and output
    conductor.py     one run: start the nodes, say GO, collect the reports, compare every byte
    node_volery.py, node_libtorrent.py    the programs of the nodes
    node_raw.py      the program of a bare copy, for comparison
    node_member.py   our node behind a router, introduced by introducer.py, which does the learner's part
    sampler.py       samples where a node's processor time is spent; profiles.py adds the samples up

Linux only, as root. Tests of faults on real connections use it as well.
"""
