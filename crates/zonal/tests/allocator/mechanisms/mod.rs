//! Tests of the mechanisms. M1 to M5 are each compared with the description by its authors.

mod extreme_rules;
mod full_nodes;
mod lock_holds;
mod m1_kernel_of_2006;
mod m1_zonelist_cache;
mod m2_batches;
mod m2_depth_published;
mod m2_pageset_tuning;
mod m3_failed_reclaim;
mod m3_node_reclaim;
mod m4_counter_rules;
mod m4_zoned_counters;
mod m5_fallback_order;
mod m6_owned_blocks;
mod numa_events;
