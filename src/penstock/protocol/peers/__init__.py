"""The packets that nodes exchange, as bytes (docs/peers.md). Pure."""

from penstock.protocol.peers.encoding import encode_packet
from penstock.protocol.peers.packets import Packet, Standing, Type
from penstock.protocol.peers.reading import ALL_TYPES, PacketReader

__all__ = ["ALL_TYPES", "Packet", "PacketReader", "Standing", "Type", "encode_packet"]
