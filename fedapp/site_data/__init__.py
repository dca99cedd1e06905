"""Where a node's rows come from: its own file, a frame of this process, or its part of a data set.

================  ==========================================================================
module            subject
================  ==========================================================================
``source``        which of them a node uses, and its name: `load_frame`, `site_name`
``columns``       what every table must fulfil, wherever it comes from
``column_names``  which columns of its own file a node shows, and under which names
``files``         CSV and Parquet files, one file a site
``partitions``    how the rows of one table are dealt to simulated sites
``generated``     simulated survival data as tables
``bundled``       data sets that come with the dependencies, and the encoding of text columns
``vertical``      columns and labels of a joined table dealt to parties
================  ==========================================================================

Every fault is a `tasks.site.faults.SiteFault`: it may travel to the server, so it holds names,
positions, counts and configuration values, and never what a row says.
"""

from __future__ import annotations

from fedapp.site_data.bundled import BUNDLED, BundledData, Encoding, decode, encode
from fedapp.site_data.column_names import parse_columns
from fedapp.site_data.columns import checked_frame
from fedapp.site_data.files import read_file, write_site_files
from fedapp.site_data.partitions import PARTITIONS, Partition, deal, natural_sites
from fedapp.site_data.source import (
    MEMORY_PREFIX,
    bundled_set,
    forget_frame,
    load_frame,
    register_frame,
    site_name,
)
from fedapp.site_data.vertical import Spread, party_table

__all__ = [
    "BUNDLED",
    "MEMORY_PREFIX",
    "PARTITIONS",
    "BundledData",
    "Encoding",
    "Partition",
    "Spread",
    "bundled_set",
    "checked_frame",
    "deal",
    "decode",
    "encode",
    "forget_frame",
    "load_frame",
    "natural_sites",
    "parse_columns",
    "party_table",
    "read_file",
    "register_frame",
    "site_name",
    "write_site_files",
]
