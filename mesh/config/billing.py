"""Reader of ``billing:`` in prices.yaml: where the bill is exported to, and how it is divided."""

from __future__ import annotations

import re

from msgspec import Struct
from yaml.nodes import Node

from mesh.config import yamlfile
from mesh.config.section import Section
from mesh.config.yamlfile import Problems
from mesh.core.errors import UsageError

KEYS = ("table", "project", "categories")
CATEGORY_KEYS = ("name", "service", "sku")
OTHER = "other"  # the category of what no rule matches
EXPECTED = "a mapping with table: PROJECT.DATASET.TABLE"
_TABLE = re.compile(r"([a-z][-a-z0-9.:]*[a-z0-9])\.([A-Za-z0-9_]+)\.([-A-Za-z0-9_]+)")
_PROJECT = re.compile(r"[a-z][-a-z0-9.:]*[a-z0-9]")


class Category(Struct, frozen=True, kw_only=True):
    """A part of the bill: charges whose service or SKU contains one of some texts, in any case."""

    name: str
    service: tuple[str, ...] = ()
    sku: tuple[str, ...] = ()

    def matches(self, service: str, sku: str) -> bool:
        """Return True for a charge of this category.

        >>> Category(name="disk", sku=("Disk",)).matches("Compute Engine", "SSD backed PD disk")
        True
        """
        pairs = ((self.service, service.lower()), (self.sku, sku.lower()))
        return any(text.lower() in found for texts, found in pairs for text in texts)


# Those of JOBMAN 3, in its order: the first one that matches counts.
CATEGORIES = (
    Category(name="storage", service=("Cloud Storage",)),
    Category(name="storage", sku=("Persistent Disk", "PD Capacity", "Filestore", "Snapshot")),
    Category(name="network", service=("Cloud CDN", "Traffic Director", "Cloud NAT")),
    Category(name="network", sku=("Egress", "Ingress", "Network Interconnect", "External IP")),
    Category(name="compute", service=("Compute Engine", "Kubernetes Engine")),
    Category(name="compute", sku=("vCPU", "RAM", "GPU", "TPU VM")),
    Category(name="bigquery", service=("BigQuery",)),
    Category(name="logging", service=("Cloud Logging",)),
    Category(name="monitoring", service=("Cloud Monitoring", "Operations Suite")),
)


class Billing(Struct, frozen=True, kw_only=True):
    """A table of BigQuery that Cloud Billing exports the bill to."""

    table: str  # PROJECT.DATASET.TABLE
    project: str = ""  # runs the query, and pays for it; "": that of the table
    categories: tuple[Category, ...] = CATEGORIES

    @property
    def payer(self) -> str:
        """The project that runs the query."""
        return self.project or self.table.rsplit(".", 2)[0]

    def category(self, service: str, sku: str) -> str:
        """Return the name of the first category that a charge is of.

        >>> Billing(table="p.d.t").category("Cloud Storage", ""), Billing(table="p.d.t").category("Support", "")
        ('storage', 'other')
        """
        return next((one.name for one in self.categories if one.matches(service, sku)), OTHER)


def table_of(text: str) -> str:
    """Return the name of a table, checked. Raises UsageError."""
    if not _TABLE.fullmatch(text):
        raise UsageError(f"expected PROJECT.DATASET.TABLE, found {text!r}", hint="mesh job billing --table P.D.TABLE")
    return text


def read_billing(node: Node, problems: Problems) -> Billing | None:
    """Return the bill's table and categories; None with a problem."""
    keys = Section(node, "billing", KEYS, problems, EXPECTED)
    table, project = keys.text("table", "PROJECT.DATASET.TABLE"), keys.text("project", "the name of a project")
    if "table" not in keys:
        problems.add(node, "billing", "table: is missing")
    elif not _TABLE.fullmatch(table):
        keys.unexpected("table", "PROJECT.DATASET.TABLE")
    if project and not _PROJECT.fullmatch(project):
        keys.unexpected("project", "the name of a project")
    categories: tuple[Category, ...] = CATEGORIES
    if "categories" in keys:
        listed = yamlfile.items(keys.node("categories"), "billing.categories", problems, "a list")
        categories = tuple(_category(item, where, problems) for where, item in listed)
    return Billing(table=table, project=project, categories=categories) if table else None


def _category(node: Node, where: str, problems: Problems) -> Category:
    keys = Section(node, where, CATEGORY_KEYS, problems, "a mapping with name:, service: and sku:")
    name = keys.text("name", "the name of a category")
    if keys.keys and not name:
        problems.add(node, where, "name: is missing")
    if keys.keys and "service" not in keys and "sku" not in keys:
        problems.add(node, where, "needs service: or sku:, a list of texts")
    service, sku = keys.texts("service", "a list of texts"), keys.texts("sku", "a list of texts")
    return Category(name=name, service=service, sku=sku)
