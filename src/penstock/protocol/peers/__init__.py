"""What nodes say to each other, as bytes: TaskFlux's packets, and ours between nodes of ours (docs/peers.md). Pure."""

from penstock.protocol.peers.encoding import encode_packet
from penstock.protocol.peers.packets import Packet, Standing, Type
from penstock.protocol.peers.reading import ALL_TYPES, PacketReader

__all__ = ["ALL_TYPES", "Packet", "PacketReader", "Standing", "Type", "encode_packet"]
