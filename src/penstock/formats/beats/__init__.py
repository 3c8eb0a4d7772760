"""The Beats family: segments, frames and events of Elastic Beats' disk queue (docs/formats/beats.md)."""
