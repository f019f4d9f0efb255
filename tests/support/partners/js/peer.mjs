// A peer of js-libp2p on loopback, for the tests of interoperability. It is given its settings as JSON on the command
// line, orders as lines of JSON on standard input, and answers with lines of JSON on standard output:
//
//     {"do": "dial", "address": "/ip4/..."}      ->      {"ok": {...}} or {"error": "..."}
//
// Orders are carried out one after another. It ends with its standard input.
import { registerHooks } from 'node:module'
import { createInterface } from 'node:readline'

const settings = JSON.parse(process.argv[1])

// What is not public is neither punched nor dialled back by js-libp2p, so one address of loopback is public here.
const PUBLIC = '127.0.0.2'
registerHooks({
  load (url, context, next) {
    return url.endsWith('/@libp2p/utils/dist/src/private-ip.js')
      ? { format: 'module', source: `export const isPrivateIp = ip => ip !== '${PUBLIC}'`, shortCircuit: true }
      : next(url, context)
  }
})

const { noise } = await import('@chainsafe/libp2p-noise')
const { yamux } = await import('@chainsafe/libp2p-yamux')
const { autoNATv2 } = await import('@libp2p/autonat-v2')
const { circuitRelayServer, circuitRelayTransport } = await import('@libp2p/circuit-relay-v2')
const { generateKeyPairFromSeed } = await import('@libp2p/crypto/keys')
const { dcutr } = await import('@libp2p/dcutr')
const { identify } = await import('@libp2p/identify')
const { peerIdFromPublicKey } = await import('@libp2p/peer-id')
const { RecordEnvelope } = await import('@libp2p/peer-record')
const { ping } = await import('@libp2p/ping')
const { tcp } = await import('@libp2p/tcp')
const { tls } = await import('@libp2p/tls')
const { multiaddr } = await import('@multiformats/multiaddr')
const { createLibp2p } = await import('libp2p')

const node = await createLibp2p({
  privateKey: await generateKeyPairFromSeed('Ed25519', new Uint8Array(32).fill(settings.seed)),
  addresses: { listen: [`/ip4/${settings.public ? PUBLIC : '127.0.0.1'}/tcp/0`, ...settings.relays.map(relay => `${relay}/p2p-circuit`)] },
  transports: [tcp(), circuitRelayTransport()],
  connectionEncrypters: settings.security.map(name => ({ noise, tls })[name]()),
  streamMuxers: [yamux()],
  services: {
    identify: identify(),
    ping: ping(),
    autonat: autoNATv2(),
    ...(settings.relays.length === 0 && { relay: circuitRelayServer({ reservations: { applyDefaultLimit: settings.limits } }) }),
    ...(settings.punches && { dcutr: dcutr() })
  }
})

if (settings.punches) {
  // It says where it is seen only once that was confirmed, by AutoNAT or like this.
  for (const address of node.components.transportManager.getAddrs().filter(one => one.toString().includes(PUBLIC))) {
    node.components.addressManager.confirmObservedAddr(address)
  }
}

const connectionsTo = peer => node.getConnections().filter(one => one.remotePeer.toString() === peer)

function told (connection) {
  return {
    address: connection.remoteAddr.toString(),
    encryption: connection.encryption,
    direction: connection.direction,
    limited: connection.limits != null
  }
}

const orders = {
  info: () => ({ peer: node.peerId.toString(), addresses: node.getMultiaddrs().map(String), protocols: node.getProtocols() }),
  dial: async ({ address }) => told(await node.dial(multiaddr(address), { signal: AbortSignal.timeout(20_000) })),
  connections: ({ peer }) => connectionsTo(peer).map(told),
  // In milliseconds.
  ping: ({ peer }) => node.services.ping.ping(connectionsTo(peer)[0].remotePeer, { signal: AbortSignal.timeout(20_000) }),
  identify: async ({ peer }) => {
    const said = await node.services.identify.identify(connectionsTo(peer)[0], { signal: AbortSignal.timeout(20_000) })
    return {
      peer: said.peerId.toString(),
      agent: said.agentVersion,
      addresses: said.listenAddrs.map(String),
      protocols: said.protocols,
      observed: said.observedAddr?.toString() ?? null
    }
  },
  // Who signed an envelope, in hexadecimal.
  certify: async ({ envelope, domain }) => {
    const { publicKey } = await RecordEnvelope.openAndCertify(Buffer.from(envelope, 'hex'), domain)
    return peerIdFromPublicKey(publicKey).toString()
  },
  // What comes back over a stream of /test/echo/1.
  echo: async ({ peer, size }) => {
    const stream = await connectionsTo(peer)[0].newStream('/test/echo/1', { signal: AbortSignal.timeout(20_000) })
    stream.send(new Uint8Array(size))
    await stream.close()
    let received = 0
    for await (const piece of stream) received += piece.byteLength
    return received
  },
  // What AutoNAT found out about our own addresses.
  verified: () => node.components.addressManager.getAddressesWithMetadata()
    .filter(one => one.verified).map(one => one.multiaddr.toString())
}

function say (answer) {
  process.stdout.write(JSON.stringify(answer) + '\n')
}

say({ ok: orders.info() })
for await (const line of createInterface({ input: process.stdin })) {
  const order = JSON.parse(line)
  try {
    say({ ok: await orders[order.do](order) ?? null })
  } catch (error) {
    say({ error: String(error?.message ?? error) })
  }
}
process.exit(0)
