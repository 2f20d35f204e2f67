"""The words of the 30 tools: what each does, what sets it apart, and how people ask for its work.

Retrieval searches these texts, so they carry the verbs and objects of real work orders.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Wording:
    """The texts of one tool.

    Attributes:
        purpose: One plain sentence; becomes the original description.
        detail: What to know beyond it; follows the purpose in the description.
        differentiators: What neighbouring tools do not do.
        keywords: Phrases that people use for this work.
    """

    purpose: str
    detail: str
    differentiators: tuple[str, ...]
    keywords: tuple[str, ...]


WORDINGS: Mapping[str, Wording] = {
    "data_processing_parser": Wording(
        "Parses raw text, CSV, JSON, XML or log lines into structured records.",
        "Splits fields, recognises types, and hands later steps rows that they can work on.",
        ("turns unstructured input into fields", "keeps the meaning of the values unchanged"),
        ("parse raw content", "extract fields from rows", "parse CSV or JSON into records", "tokenize log lines"),
    ),
    "data_processing_transformer": Wording(
        "Transforms records by reshaping, renaming, normalizing and enriching their fields.",
        "Applies mapping rules to every record, so that the data fits the model of the next step.",
        ("changes the values and the shape of records", "works on records in memory, not on files"),
        ("transform records", "normalize values", "reshape columns", "clean and standardize", "derive new fields"),
    ),
    "data_processing_validator": Wording(
        "Validates data records against a schema and reports every violation.",
        "Checks types, ranges, required fields and uniqueness, and marks the records that fail.",
        ("judges records without changing them", "looks at data content, not at network endpoints"),
        (
            "validate records",
            "check data quality",
            "verify required fields",
            "flag missing values",
            "find invalid rows",
        ),
    ),
    "data_processing_aggregator": Wording(
        "Aggregates many records into totals, averages and counts for each group.",
        "Combines and merges several inputs into one summary table.",
        ("reduces many records to few", "joins inputs from several sources"),
        (
            "aggregate by group",
            "compute averages per group",
            "summarize totals",
            "merge data sets",
            "roll up per month",
        ),
    ),
    "data_processing_filter": Wording(
        "Filters data records and keeps only those that meet a condition.",
        "Drops noise and duplicates, and leaves the kept records unchanged.",
        ("selects records, never edits them",),
        ("filter rows", "keep only records above a limit", "remove duplicates", "discard noise", "exclude entries"),
    ),
    "file_operations_reader": Wording(
        "Reads a file from disk and returns its content.",
        "Opens local or mounted files of any size and loads their data for the steps that follow.",
        ("loads one named file", "starts a pipeline from storage"),
        ("read a file", "read logs and spreadsheets", "load file content", "open a document", "import data from disk"),
    ),
    "file_operations_writer": Wording(
        "Writes results to a file and saves it in a folder.",
        "Creates or replaces the output file, and confirms where it lies and how large it is.",
        ("is where a pipeline ends on disk", "stores data that earlier steps produced"),
        ("write output file", "save results to disk", "export a report file", "store the table in a folder"),
    ),
    "file_operations_scanner": Wording(
        "Scans folders and lists the files found there.",
        "Walks directory trees, matches file name patterns, and returns paths, sizes and dates.",
        ("finds files without opening them",),
        ("scan a directory", "find files", "list folder contents", "search the file system", "inventory of documents"),
    ),
    "file_operations_compressor": Wording(
        "Compresses files into a smaller archive.",
        "Packs files as zip, gzip or tar, and reports how much space was saved.",
        ("makes files smaller without changing their content",),
        ("compress an archive", "zip files", "pack a folder", "reduce file size", "gzip for storage"),
    ),
    "file_operations_converter": Wording(
        "Converts a file from one file format to another.",
        "Reads one format and produces the same content in another, such as XLSX to CSV or DOCX to PDF.",
        ("changes the format of files, not the values inside",),
        ("convert file format", "change CSV to JSON", "turn a document into PDF", "re-encode a file"),
    ),
    "network_fetcher": Wording(
        "Fetches data over the network from a URL or web API.",
        "Sends the request to the endpoint and returns what the remote server answers.",
        ("brings remote data in", "starts a pipeline from the network"),
        ("fetch from an API", "download from a URL", "pull records from a web service", "retrieve remote data"),
    ),
    "network_poster": Wording(
        "Posts data over the network to a remote API or webhook.",
        "Sends the payload by HTTP, and returns the status and the answer of the server.",
        ("sends data out", "changes something on a remote system"),
        ("post to an endpoint", "push updates to an API", "submit or upload to a remote server", "send to a webhook"),
    ),
    "network_monitor": Wording(
        "Monitors network connections and the health of remote services.",
        "Measures availability, latency and traffic over time, and reports outages.",
        ("observes endpoints and transfers no data",),
        ("monitor network traffic", "watch uptime", "check service health", "measure latency", "detect outages"),
    ),
    "network_validator": Wording(
        "Validates network responses, endpoints and certificates.",
        "Checks that what came over the network is complete, well signed and follows the interface contract.",
        ("judges answers of remote services", "follows a fetch"),
        ("validate an API response", "verify endpoint and certificate", "check status codes and checksums"),
    ),
    "network_router": Wording(
        "Routes network messages and requests to the right destination.",
        "Chooses the target by rules on content, load or region, and forwards each message.",
        ("decides where traffic goes",),
        ("route requests", "forward messages", "direct network traffic", "dispatch to the right destination"),
    ),
    "computation_calculator": Wording(
        "Calculates numerical results from formulas and input values.",
        "Evaluates arithmetic, rates, fees and indicators with a stated precision.",
        ("gives exact results of known formulas",),
        ("calculate totals and rates", "compute a formula", "work out costs or taxes", "arithmetic on figures"),
    ),
    "computation_analyzer": Wording(
        "Analyzes data statistically to find trends, patterns and correlations.",
        "Computes distributions, significance and anomalies, and explains what stands out.",
        ("explains data that exist already",),
        ("analyze data", "statistical analysis", "find trends", "detect anomalies", "correlate variables"),
    ),
    "computation_optimizer": Wording(
        "Optimizes an objective and finds the best solution under constraints.",
        "Searches parameters, schedules or allocations for the lowest cost or the highest yield.",
        ("chooses among many possible solutions",),
        ("optimize allocation", "minimize cost", "maximize yield", "find the best plan", "tune parameters"),
    ),
    "computation_simulator": Wording(
        "Simulates scenarios with a numerical model.",
        "Runs many what-if or Monte Carlo trials, and returns the outcomes of each scenario.",
        ("plays through what could happen under given assumptions",),
        ("simulate scenarios", "run a Monte Carlo simulation", "what-if model", "stress test"),
    ),
    "computation_predictor": Wording(
        "Predicts future values from historical data.",
        "Fits a forecasting model, and returns predictions with uncertainty bands.",
        ("estimates values that are not known yet",),
        ("predict demand", "forecast next month", "estimate future values", "project a trend", "risk score"),
    ),
    "integration_connector": Wording(
        "Connects to an external system and opens a session with it.",
        "Links databases, CRM and ERP systems or message brokers, so that later steps can use them.",
        ("sets up the connection that other integration tools use",),
        ("connect to a database", "link an external system", "open a session with the CRM", "integrate an ERP"),
    ),
    "integration_authenticator": Wording(
        "Authenticates with an external service and obtains an access token.",
        "Checks credentials, signs in by OAuth, key or certificate, and renews tokens.",
        ("deals with identity and access, not with data",),
        ("authenticate a user", "log in", "obtain an access token", "verify credentials", "sign in with OAuth"),
    ),
    "integration_mapper": Wording(
        "Maps fields of one system to the fields of another system.",
        "Translates identifiers, codes and schemas between two connected applications.",
        ("relates two schemas to each other",),
        ("map fields between systems", "match schemas", "translate codes", "align identifiers of two applications"),
    ),
    "integration_queue": Wording(
        "Queues messages and jobs for processing by another system.",
        "Puts work items in a message queue, keeps their order, and hands them on when there is capacity.",
        ("holds work until somebody takes it",),
        ("queue messages", "enqueue jobs", "put work items in line", "buffer events for workers", "message broker"),
    ),
    "integration_scheduler": Wording(
        "Schedules jobs to run at set times.",
        "Registers recurring or delayed runs between systems, and starts them when they are due.",
        ("decides when work runs",),
        ("schedule a job", "run every night", "set up a recurring task", "cron timer", "plan the next run"),
    ),
    "utility_logger": Wording(
        "Logs events and messages to a log for later audit.",
        "Records what happened, when and at which severity.",
        ("writes history that nobody edits",),
        ("log an event", "record an audit trail", "write log entries", "keep a journal of steps"),
    ),
    "utility_cache": Wording(
        "Caches values for quick reuse.",
        "Keeps results in memory under a key until they expire.",
        ("saves repeated work",),
        ("cache results", "store temporarily", "keep in memory for reuse", "look up a cached value"),
    ),
    "utility_notifier": Wording(
        "Notifies people by email, chat or text message.",
        "Sends alerts and announcements to a team, a channel or a customer, and reports the delivery.",
        ("reaches people, not systems",),
        ("notify the team", "send an alert", "email managers a summary", "inform customers", "message on-call staff"),
    ),
    "utility_tracker": Wording(
        "Tracks the progress and status of work over time.",
        "Counts milestones, durations and usage, and shows how far each item has come.",
        ("follows items through their stages",),
        ("track progress", "follow the status of an item", "keep count of milestones", "measure usage over time"),
    ),
    "utility_helper": Wording(
        "Helps with small general tasks that no other tool covers.",
        "Gives hints, fills in defaults, and makes identifiers, dates and units.",
        ("is general where the other tools are special",),
        ("help with a task", "general assistance", "suggest next steps", "generate identifiers", "convert units"),
    ),
}
