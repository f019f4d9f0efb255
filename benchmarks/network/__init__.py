"""A network on one machine: peers in Linux network namespaces, with the links of homes and data centres between them.

    emulation.py     nodes around one switch, each with an uplink and a downlink of its own, and perhaps a delay
    namespaces.py    the namespaces below, which remove themselves when their owner is gone
    delay_switch.c   the switch with delays, since many kernels lack netem
    routers.py       kinds of home routers, and the nftables rules that make each
    homes.py         an internet: public hosts, and homes behind routers; a command that builds one to walk about in
    home.py          a home as a value; wiring.py builds it, and port_daemon.py runs what opens ports for it
    router_probe.py  looks whether each router behaves as its kind does; meeting_probe.py whether two nodes come
                     together, daemon_probe.py whether a port is opened; ports.py is what they connect with
    introduction.py  has two nodes in homes be introduced by a relay; node_reach.py is their program
    go_introduction.py    the same with go-libp2p; node_kubo.py is its program, node_observers.py tells where it is seen
    requirements.py  what the machine must offer, and how it gets it
    probe.py         measures a link, to check the emulation itself
    bound.py         how soon a file can reach everybody, whatever the method
    scenarios.py     the swarms that are measured; payload.py is what they send
    founding.py      the swarm that the programs below belong to
    line.py          what a node's program says on its standard output, and hears on its input
    conductor.py     one run: start the nodes, say GO, collect, compare every byte
    node_volery.py, node_libtorrent.py    the programs of the nodes
    node_member.py   ours behind a router, who is introduced by introducer.py, the learner's part of that
    sampler.py       samples where a node's processor time goes; profiles.py adds them up

Linux only, as root. Tests of faults on real connections use it as well.
"""
