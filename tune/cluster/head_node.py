"""Which node's processes this one joins where several Ray nodes run on one machine: the head's.

Ray 2.47 takes any node with this machine's address, and a search ends with the node that it is attached to, all
its trials with it. Newer Ray (2.60) prefers the head by itself.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def attached_to_head() -> Iterator[None]:
    """While it lasts, `ray.init` joins the head where the head runs on this machine."""
    from ray._private import services, state

    original = services.get_node_to_connect_for_driver
    if "gcs_address" not in inspect.signature(original).parameters:
        yield
        return

    def prefer_head(gcs_address: str, node_ip_address: str) -> Any:
        found = original(gcs_address, node_ip_address)
        tables = state.GlobalState()
        tables._initialize_global_state(services._get_gcs_client_options(gcs_address))
        for node in tables.node_table():
            is_head = "node:__internal_head__" in node["Resources"]
            if is_head and node["Alive"] and node["NodeManagerAddress"] == node_ip_address:
                return {
                    **found,
                    "object_store_socket_name": node["ObjectStoreSocketName"],
                    "raylet_socket_name": node["RayletSocketName"],
                    "node_manager_port": node["NodeManagerPort"],
                    "node_id": node["NodeID"],
                }
        return found

    services.get_node_to_connect_for_driver = prefer_head
    try:
        yield
    finally:
        services.get_node_to_connect_for_driver = original
