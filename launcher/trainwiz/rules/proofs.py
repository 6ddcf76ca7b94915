"""Which error rules were shown by the engine itself; the others are marked as unproven, and rest on their source."""

from __future__ import annotations

PROVEN = frozenset({
    # tests/test_claims.py
    "TW104", "TW105", "TW107", "TW108", "TW121", "TW122", "TW123", "TW131", "TW201", "TW202", "TW204", "TW205", "TW221",
    "TW301", "TW303", "TW305", "TW312", "TW315", "TW317", "TW321", "TW323", "TW324", "TW401", "TW403", "TW413", "TW501",
    "TW503", "TW518", "TW521", "TW601", "TW611", "TW612", "TW613", "TW614", "TW615", "TW616", "TW760",
    # tests/test_colossalai.py
    "TW118", "TW207", "TW309", "TW310", "TW319",
    # tests/test_missing.py
    "TW101", "TW102", "TW103", "TW109", "TW111", "TW112", "TW113", "TW114", "TW117", "TW411", "TW511", "TW512", "TW513",
    "TW514", "TW515", "TW524", "TW531", "TW532",
    # tests/test_configurations.py
    "TW251", "TW252", "TW255", "TW331", "TW332", "TW333", "TW334", "TW338", "TW341", "TW343", "TW344", "TW346", "TW347",
    "TW348", "TW350", "TW351", "TW352", "TW353", "TW354", "TW355", "TW356", "TW357", "TW358", "TW359", "TW361",
    "TW362", "TW364", "TW366", "TW368", "TW369", "TW370", "TW371", "TW373", "TW374", "TW375", "TW378", "TW382",
    "TW383", "TW385", "TW386", "TW387", "TW388", "TW389", "TW390", "TW391", "TW394", "TW397", "TW398", "TW431", "TW432",
    "TW651", "TW653", "TW656", "TW657", "TW659", "TW661", "TW662", "TW663", "TW671", "TW672",
    "TW675", "TW677", "TW678", "TW679", "TW680", "TW682", "TW683", "TW684", "TW686", "TW687",
    # tests/test_script_claims.py
    "TW701", "TW702", "TW703", "TW705", "TW710", "TW711", "TW712", "TW713", "TW714", "TW720", "TW721", "TW723", "TW724",
    "TW726", "TW727", "TW728", "TW729", "TW731", "TW732", "TW733", "TW734", "TW756",
})  # fmt: skip
"""Ids of error rules whose violation a test gives to the real engine, which fails or does what the rule claims."""
