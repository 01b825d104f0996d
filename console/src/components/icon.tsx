// Symbols of the console, on a grid of 16, drawn with the colour of the text.
const paths = {
  overview: "M2.5 8.500h2.700l1.8-5 2.8 9.5 1.9-4.500h1.8",
  explain:
    "M8 14.200A6.2 6.2 0 1 0 8 1.800a6.2 6.2 0 0 0 0 12.400zM6.2 6.300A1.9 1.9 0 0 1 8 4.900c1.1 0 1.9.7 1.9 1.7 0 1.3-1.9 1.5-1.9 2.900M8 11.400v.1",
  sources: "M8 2v7.500M4.8 6.5 8 9.700l3.2-3.200M2.5 11v2.500h11V11",
  events: "M9 1.8 3.5 9h4l-.8 5.200L12.5 7H8.400z",
  rules: "M2.5 3.500h4v3h-4zM2.5 9.500h4v3h-4zM9 5h4.500M9 11h4.5",
  notifications:
    "M8 2.200c-2.4 0-3.9 1.8-3.9 4.100v2.600l-1.3 2.200h10.400l-1.3-2.200V6.300C11.9 4 10.4 2.2 8 2.200zM6.5 13.200a1.6 1.6 0 0 0 3 0",
  channels: "M2 4h12v8.500H2zM2 4.500l6 4.5 6-4.5",
  subscribers:
    "M6 7.500a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5zM1.5 13.500c0-2.5 1.9-4 4.5-4s4.5 1.5 4.5 4M10.5 2.900a2.3 2.3 0 0 1 0 4.300M12 9.900c1.6.5 2.5 1.8 2.5 3.6",
  segments: "M8 2a6 6 0 1 0 6 6H8zM10.5 1.500a5 5 0 0 1 4 4h-4z",
  directory: "M5.5 2h5v3h-5zM1.5 11h5v3h-5zM9.5 11h5v3h-5zM8 5v3M4 11V8h8v3",
  inbox: "M2 9.5 4 3h8l2 6.500V13H2zM2 9.500h3.500l1 1.800h3l1-1.800H14",
  suppressions: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12zM3.8 3.800l8.4 8.4",
  exchanges: "M2 5.500h10.500M9.7 2.700l2.8 2.8-2.8 2.800M14 10.500H3.500M6.3 7.700l-2.8 2.8 2.8 2.8",
  sync: "M13.3 6.500A5.6 5.6 0 0 0 3.2 5M2.7 9.500A5.6 5.6 0 0 0 12.8 11M3 2v3.200h3.200M13 14v-3.200H9.8",
  applications: "M2.5 2.500h4.500v4.500H2.500zM9 2.500h4.500v4.500H9zM2.5 9h4.500v4.500H2.500zM9 9h4.500v4.500H9z",
  templates: "M3 2h10v12H3zM5.5 5h5M5.5 8h5M5.5 11h3",
  attention: "M8 2 1.5 13.500h13zM8 6.500v3.300M8 11.600v.1",
  suspended: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12zM6.3 5.800v4.400M9.7 5.800v4.4",
  schedules: "M2.5 3.500h11v10h-11zM2.5 6.500h11M5.5 2v3M10.5 2v3M8 8.500v2l1.5 1",
  reports: "M2.5 13.500h11M4 11V7.500M8 11V3M12 11V5.5",
  capacity: "M2.2 11.500a6 6 0 1 1 11.6 0M8 10.500l2.7-3.800M8 11.300v.1",
  maintenance:
    "M9.5 5.500a3 3 0 0 1 3.8-2.900l-1.8 1.8.6 1.5 1.5.6 1.1-1.700a3 3 0 0 1-4.1 3.400L5 13.800a1.5 1.5 0 0 1-2.2-2.200L8.8 6.5",
  admin: "M8 1.8 2.8 3.800v4c0 3.2 2.2 5.3 5.2 6.4 3-1.1 5.2-3.2 5.2-6.400v-4zM5.8 8l1.6 1.6 2.9-3.2",
  search: "M7 12A5 5 0 1 0 7 2a5 5 0 0 0 0 10zM10.7 10.7 14 14",
  menu: "M2 4h12M2 8h12M2 12h12",
  close: "M3.5 3.500l9 9M12.5 3.500l-9 9",
  check: "M3 8.5 6.3 12 13 4.5",
  "chevron-down": "M4 6l4 4 4-4",
  "chevron-right": "M6 4l4 4-4 4",
  "chevron-left": "M10 4 6 8l4 4",
  "arrow-up": "M8 13V3M4 7l4-4 4 4",
  "arrow-down": "M8 3v10M4 9l4 4 4-4",
  "arrow-right": "M2.5 8h11M9.5 4l4 4-4 4",
  copy: "M5.5 5.500h8v8h-8zM3.5 10.500h-1v-8h8v1",
  terminal: "M2 3h12v10H2zM4.5 6l2 2-2 2M8 10.500h3.5",
  download: "M8 2v8M4.5 7 8 10.5 11.5 7M2.5 13.500h11",
  upload: "M8 10.500V2.500M4.5 6 8 2.5 11.5 6M2.5 13.500h11",
  columns: "M2 3h12v10H2zM6 3v10M10 3v10",
  filter: "M2 3h12L9.5 8.500V13l-3-1.500v-3z",
  more: "M3 8h.1M8 8h.1M13 8h.1",
  plus: "M8 3v10M3 8h10",
  edit: "M2.5 13.500l.7-3 7.8-7.8 2.3 2.3-7.8 7.800z",
  trash: "M2.5 4h11M6 4V2.500h4V4M4 4l.6 9.500h6.800L12 4",
  play: "M4.5 2.500v11l8.5-5.500z",
  pause: "M5.8 4v8M10.2 4v8",
  refresh: "M13 8a5 5 0 1 1-1.5-3.600L13 6M13 2.500V6H9.5",
  external: "M6 3H3v10h10v-3M9 2.500h4.500V7M13.5 2.5 7.5 8.5",
  clock: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12zM8 4.500V8l2.5 1.5",
  user: "M8 8a3 3 0 1 0 0-6 3 3 0 0 0 0 6zM2.5 14c0-2.8 2.2-4.5 5.5-4.500s5.5 1.7 5.5 4.5",
  key: "M5.5 11.500a3.5 3.5 0 1 0 0-7 3.5 3.5 0 0 0 0 7zM9 8h5.500M12 8v2.5",
  lock: "M3.5 7h9v6.500h-9zM5.5 7V5a2.5 2.5 0 0 1 5 0v2",
  logout: "M6 2.500H2.500v11H6M6.5 8h7.500M11 5l3 3-3 3",
  success: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12zM5.3 8.3 7.2 10.2 10.8 6.2",
  error: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12zM5.8 5.800l4.4 4.400M10.2 5.800l-4.4 4.4",
  pending: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12zM8 5v3.200l2 1.3",
  info: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12zM8 7.300v3.900M8 4.900v.1",
  neutral: "M8 11.500a3.5 3.5 0 1 0 0-7 3.5 3.5 0 0 0 0 7z",
  keyboard: "M1.5 4h13v8.500h-13zM4 6.800h.1M6.7 6.800h.1M9.3 6.800h.1M12 6.800h.1M5 9.800h6",
  book: "M8 3.800C6.5 2.8 4.5 2.5 2 2.500v10c2.5 0 4.5.3 6 1.3 1.5-1 3.5-1.3 6-1.300v-10c-2.5 0-4.5.3-6 1.300zM8 3.800v10",
} as const;

export type IconName = keyof typeof paths;

export function isIcon(name: string): name is IconName {
  return name in paths;
}

/** A symbol without a text of its own: its element needs a label beside it. */
export function Icon({ name, size = 16, className }: { name: IconName; size?: number; className?: string }) {
  return (
    <svg
      className={className === undefined ? "icon" : `icon ${className}`}
      width={size}
      height={size}
      viewBox="0 0 16 16"
      aria-hidden="true"
      focusable="false"
    >
      <path d={paths[name]} />
    </svg>
  );
}

/** The mark of the product. */
export function Bell({ size = 20 }: { size?: number }) {
  return (
    <svg className="bell" width={size} height={size} viewBox="0 0 32 32" aria-hidden="true" focusable="false">
      <path d="M16 3.200a2 2 0 0 0-2 2v.6C10 6.7 7.4 10 7.4 14.100v5.200L5 23v1.600h22V23l-2.4-3.700v-5.200C24.6 10 22 6.7 18 5.800v-.6a2 2 0 0 0-2-2z" />
      <path d="M12.4 26.200a3.7 3.7 0 0 0 7.2 0z" />
    </svg>
  );
}
